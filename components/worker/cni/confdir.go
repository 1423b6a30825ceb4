package cni

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/sirupsen/logrus"
)

// endings are the extensions of the files that CRI reads.
var endings = []string{".conf", ".conflist", ".json"}

// thirdParty returns the configuration in dir that is in use: as in CRI the first by name, but invalid ones (for
// example while being written) are skipped. It returns nil when there is none.
func thirdParty(dir string, log logrus.FieldLogger) (*config, error) {
	entries, err := os.ReadDir(dir) // sorted by name
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() || !slices.Contains(endings, filepath.Ext(e.Name())) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		content, err := os.ReadFile(path)
		if err == nil {
			err = valid(filepath.Ext(path), content)
		}
		if err != nil {
			log.WithError(err).Warnf("ignoring CNI configuration %s", path)
			continue
		}
		return &config{file: e.Name(), content: content, origin: path}, nil
	}
	return nil, nil
}

// valid applies the same checks as CRI. A list with plugins in other files is refused, because only the one file is
// copied.
func valid(ending string, content []byte) error {
	if ending == ".conflist" {
		l, err := libcni.NetworkConfFromBytes(content)
		if err != nil {
			return err
		}
		if len(l.Plugins) == 0 {
			return errors.New("it lists no plugins")
		}
		return nil
	}
	_, err := libcni.NetworkPluginConfFromBytes(content)
	return err
}

// install makes c the only configuration in dir and reports whether it was not.
func install(dir string, c config) (changed bool, err error) {
	if !installed(dir, c) {
		changed = true
		if err := replace(filepath.Join(dir, c.file), c.content); err != nil {
			return false, err
		}
	}
	return changed, removeOthers(dir, c.file)
}

// installed reports whether dir holds c.
func installed(dir string, c config) bool {
	content, err := os.ReadFile(filepath.Join(dir, c.file))
	return err == nil && bytes.Equal(content, c.content)
}

// replace writes the file atomically, and so that CRI notices and reads it once, when it is complete: CRI ignores the
// creation of a file, and reloads on a write, rename or removal. So the file is written outside, moved in under a name
// that CRI does not read, and renamed.
func replace(path string, content []byte) error {
	dir := filepath.Dir(path)
	outside := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".new")
	inside := filepath.Join(dir, ".new")
	if err := os.WriteFile(outside, content, 0o600); err != nil {
		return fmt.Errorf("write CNI configuration: %w", err)
	}
	if err := os.Rename(outside, inside); err != nil {
		return err
	}
	return os.Rename(inside, path)
}

// removeOthers removes all configurations in dir except the one named.
func removeOthers(dir, keep string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == keep || !slices.Contains(endings, filepath.Ext(e.Name())) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
