// Package suite keeps what tests of others need, and what takes minutes to build, in the user's cache: every clone of
// the same versions has it.
package suite

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"kubelith.io/kubelith/integration/lockfile"
)

// kept is how many suites of a name stay in addition to a new one, the newest: each takes hundreds of MB.
const kept = 2

// Main is the main function of a command that builds a suite: it prints the suite's directory, and calls build for a
// new one when there is none. With the argument --where it builds nothing and exits with 1 when there is none. A suite
// is the same while its inputs, the release of Go and the architecture are.
func Main(name string, inputs func() ([]byte, error), build func(dir string) error) {
	dir, err := where(name, inputs)
	if err == nil && !exists(dir) {
		if slices.Contains(os.Args[1:], "--where") {
			os.Exit(1)
		}
		err = create(dir, build)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}

func where(name string, inputs func() ([]byte, error)) (string, error) {
	content, err := inputs()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	sum.Write(content)
	fmt.Fprint(sum, runtime.Version(), runtime.GOARCH)
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "kubelith", name, hex.EncodeToString(sum.Sum(nil))[:16]), err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// create builds a suite beside its directory and moves it there when it is whole.
func create(dir string, build func(dir string) error) error {
	parent := filepath.Dir(dir)
	unlock, err := lockfile.Lock(filepath.Join(parent, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if exists(dir) {
		return nil // another one was quicker
	}
	if err := clean(parent); err != nil {
		return err
	}
	tmp := dir + unfinished
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return err
	}
	if err := build(tmp); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// unfinished is the suffix of a directory whose suite is being built.
const unfinished = ".tmp"

// clean removes what was begun and not ended, and all but the newest suites.
func clean(parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	var suites []fs.FileInfo
	var old []string
	for _, e := range entries {
		info, err := e.Info()
		switch {
		case err != nil || !e.IsDir():
		case strings.HasSuffix(e.Name(), unfinished):
			old = append(old, e.Name())
		default:
			suites = append(suites, info)
		}
	}
	slices.SortFunc(suites, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for _, s := range suites[min(kept, len(suites)):] {
		old = append(old, s.Name())
	}
	for _, name := range old {
		err = errors.Join(err, os.RemoveAll(filepath.Join(parent, name)))
	}
	return err
}
