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

	"kubelith.io/kubelith/base/atomicfile"
)

// Files of a volume's directory.
const (
	metaFile  = "meta.json"
	dataDir   = "data"
	imageFile = "image"
)

// metaVersion is the format of meta.json. Volumes with enforcement have version 2, as a driver of version 1 would treat
// them as directories. All others stay readable for it.
const metaVersion = 2

// mode is what a pod gets: a file system or a block device.
type mode string

const (
	filesystem mode = "filesystem"
	block      mode = "block"
)

// volume is the content of meta.json. Only Size changes after creation.
type volume struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Name    string    `json:"name"` // given by the caller: the same name is the same volume
	Mode    mode      `json:"mode"`
	Size    int64     `json:"size"` // in bytes
	Created time.Time `json:"created"`
	// Enforcement is quota, file or none; volumes of earlier versions have none.
	Enforcement enforcement `json:"enforcement,omitempty"`
	Project     uint32      `json:"project,omitempty"` // of the quota
	// Claim and Volume are for administrators: the claim that it was created for.
	Claim  string `json:"claim,omitempty"`
	Volume string `json:"persistentVolume,omitempty"`
}

// errNotFound reports that there is no volume of that id.
var errNotFound = errors.New("no such volume")

var safeID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// maxNameSize is in bytes, by the CSI specification.
const maxNameSize = 128

// idOf returns the id for a name, which may be any string: the name itself if it can be the name of a directory, like
// the provisioner's names, else a digest.
func idOf(name string) string {
	if safeID.MatchString(name) {
		return name
	}
	return fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(name)))
}

// readVolume reads the meta.json of a directory.
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
		return nil, fmt.Errorf("%s was written by a newer version of this driver", filepath.Join(dir, metaFile))
	case v.Version < 1 || v.Enforcement == quota && v.Project == 0 || v.ID != filepath.Base(dir) || v.Size <= 0 || v.Mode != filesystem && v.Mode != block:
		return nil, fmt.Errorf("%s does not describe volume %s", filepath.Join(dir, metaFile), filepath.Base(dir))
	}
	return v, nil
}

// versionOf returns the format version that a volume needs.
func versionOf(v *volume) int {
	if v.Enforcement == quota || v.Enforcement == file {
		return metaVersion
	}
	return 1
}

// write replaces the volume's meta.json, durably.
func (v *volume) write(dir string) error {
	v.Version = versionOf(v)
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	// Only one writer: it has the store's lock, or the volume is unfinished.
	return atomicfile.Write(filepath.Join(dir, metaFile), append(text, '\n'))
}

// resizeImage grows an image to a size. It never shrinks one, which would cut off data.
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
