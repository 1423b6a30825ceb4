// Package payload carries the programs that containers are launched with (runc, the containerd shim, the CNI plugins)
// and the storage plugin inside the executable, and unpacks them into the data directory at start.
//
// They are separate programs, not code of this process, because they must outlive it: a shim holds a pod's pipes and
// exit status while the process restarts. programs/ is the module with their sources, payload.mk the recipe, pack/
// creates the archive. components/worker/containerd and components/worker/cni run them.
package payload

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"kubelith.io/kubelith/base/names"
)

// Names of the programs in the directory that Unpack returns. The CNI plugins have our own names, so that programs of a
// distribution or another network in /opt/cni/bin are never taken for ours.
const (
	Runc     = "runc"
	Shim     = "containerd-shim-runc-v2"
	Keeper   = "kubelith-keeper"
	Pause    = names.PauseProgram
	CNI      = "kubelith-cni"
	Loopback = "kubelith-loopback"
	Portmap  = "kubelith-portmap"
	Local    = "kubelith-local"
)

// ErrNotBuilt is returned by Unpack in an executable that was built without its payload.
var ErrNotBuilt = errors.New("this executable was built without its payload (runc, shim, CNI plugins, storage plugin): build it with `make build`")

// Dir returns the directory, in a data directory, with everything that Unpack creates.
func Dir(dataDir string) string { return filepath.Join(dataDir, "data") }

// Unpack puts the programs under dataDir and returns the directory that holds them.
//
// The returned path is <dataDir>/data/current/bin, where current is a symbolic link to data/<hash>. It stays the same
// over upgrades because containerd stores it with every sandbox. Directories of older versions are removed once no
// process executes one of their programs. Unpack may be killed at any moment: a directory gets its final name only when
// all its files are on disk. One process at a time may call it for a data directory.
func Unpack(dataDir string) (string, error) {
	archive, list, err := embedded()
	if err != nil {
		return "", err
	}
	defer archive.Close()
	s := store{dir: Dir(dataDir), proc: "/proc"}
	binDir, err := s.install(archive, list)
	if err != nil {
		return "", fmt.Errorf("payload: %w", err)
	}
	return binDir, nil
}

// Patched returns the modules, "PATH VERSION", of the programs whose source make has patched (patches). An executable
// without its payload has none.
func Patched() []string {
	archive, list, err := embedded()
	if err != nil {
		return nil
	}
	archive.Close()
	var modules []string
	for _, f := range list.files {
		if f.patched != "" {
			modules = append(modules, f.patched)
		}
	}
	return modules
}

// embedded opens the archive for this architecture. It is read from the executable as it is unpacked, not copied.
func embedded() (io.ReadCloser, *list, error) {
	text, err := fs.ReadFile(embeddedFiles, embeddedDir+"/payload.list")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, ErrNotBuilt
	}
	if err != nil {
		return nil, nil, fmt.Errorf("payload: %w", err)
	}
	list, err := parseList(string(text))
	if err != nil {
		return nil, nil, fmt.Errorf("payload: %w", err)
	}
	archive, err := embeddedFiles.Open(embeddedDir + "/payload.tar.zst")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, ErrNotBuilt
	}
	if err != nil {
		return nil, nil, fmt.Errorf("payload: %w", err)
	}
	return archive, list, nil
}
