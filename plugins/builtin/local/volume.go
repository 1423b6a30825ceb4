package local

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// Files of a volume's directory.
const (
	metaFile  = "meta.json"
	dataDir   = "data"
	imageFile = "image"
)

// metaVersion is the format of meta.json. A volume that is held to its size has 2: a driver that knows only 1 would
// take it for a directory. All others stay readable for it.
const metaVersion = 2

// mode of a volume: what a pod gets.
type mode string

const (
	filesystem mode = "filesystem"
	block      mode = "block"
)

// volume is what meta.json says. Only Size ever changes once it has its name.
type volume struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Name    string    `json:"name"` // that the caller gave: the same name is the same volume
	Mode    mode      `json:"mode"`
	Size    int64     `json:"size"` // in bytes, as promised
	Created time.Time `json:"created"`
	// Enforcement is what holds a file system to its size: quota, file, or none, which volumes that earlier versions made have too.
	Enforcement enforcement `json:"enforcement,omitempty"`
	Project     uint32      `json:"project,omitempty"` // whose quota it is
	// Claim and Volume are for whoever finds the directory: which claim it was made for.
	Claim  string `json:"claim,omitempty"`
	Volume string `json:"persistentVolume,omitempty"`
}

// errNotFound: no volume of that id.
var errNotFound = errors.New("no such volume")

var (
	safeID      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	maxNameSize = 128 // bytes, by the CSI specification
)

// idOf a name, which may be any string: itself when it is good as the name of a directory, as the provisioner's are.
func idOf(name string) string {
	if safeID.MatchString(name) {
		return name
	}
	return fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(name)))
}

// readVolume reads the directory of a volume.
func readVolume(dir string) (*volume, error) {
	text, err := os.ReadFile(filepath.Join(dir, metaFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNotFound
	}
	if err != nil {
		return nil, err
	}
	v := &volume{}
	if err := json.Unmarshal(text, v); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, metaFile), err)
	}
	switch {
	case v.Version > metaVersion:
		return nil, fmt.Errorf("%s is of a newer version of this driver", filepath.Join(dir, metaFile))
	case v.Version < 1 || v.Enforcement == quota && v.Project == 0 || v.ID != filepath.Base(dir) || v.Size <= 0 || v.Mode != filesystem && v.Mode != block:
		return nil, fmt.Errorf("%s does not describe volume %s", filepath.Join(dir, metaFile), filepath.Base(dir))
	}
	return v, nil
}

// versionOf the format that a volume needs.
func versionOf(v *volume) int {
	if v.Enforcement == quota || v.Enforcement == file {
		return metaVersion
	}
	return 1
}

// write the volume's meta.json to disk, in place of the one that is there.
func (v *volume) write(dir string) error {
	v.Version = versionOf(v)
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	temp := filepath.Join(dir, metaFile+".new") // one writer: under the store's lock, or in a directory without a name
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Join(dir, metaFile)); err != nil {
		return err
	}
	return syncDir(dir)
}

// syncDir makes names in a directory outlive a power cut.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// resizeImage makes an image as large as wanted; never smaller, that would cut off what a pod wrote.
func resizeImage(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Size() < size {
		err = errors.Join(f.Truncate(size), f.Sync())
	}
	return errors.Join(err, f.Close())
}
