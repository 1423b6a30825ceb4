package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// step upgrades a directory from one format to the next. It must be safe to repeat: after a crash it runs again from
// its beginning. The directory is locked and nothing runs in it.
type step func(dir string) error

// steps are the existing upgrades: the one at index i goes from format i+1 to i+2. Append to it when the layout
// changes; its length determines the format that this program writes. There is only format 1 yet.
func steps() []step { return nil }

// upgrade reads D/version, refuses a newer format, and runs the steps that an older one lacks. It stores the new number
// after each, so that a crash repeats one step at most. It returns the release that wrote the directory last, if that
// is another.
//
// The file has the format as a whole number in its first line, and in the second, for users, the kubelith that wrote it
// last. A directory without the file is new.
func upgrade(dir, release string, upgrades []step) (former string, err error) {
	path := filepath.Join(dir, "version")
	newest := len(upgrades) + 1
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", writeVersion(path, newest, release)
	}
	if err != nil {
		return "", unusable(dir, err)
	}
	first, second, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
	format, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || format < 1 {
		return "", fmt.Errorf("%s is damaged (its first line is %q, not the number of a format): restore it from a backup; "+
			"this kubelith writes %d", path, first, newest)
	}
	if format > newest {
		return "", fmt.Errorf("data directory %s has format %d and was written by a newer kubelith (%s): "+
			"this one knows formats up to %d, so install the newer one or use another --data-dir",
			dir, format, strings.TrimPrefix(second, "kubelith "), newest)
	}
	for ; format < newest; format++ {
		if err := upgrades[format-1](dir); err != nil {
			return "", fmt.Errorf("data directory %s: upgrade from format %d to %d: %w", dir, format, format+1, err)
		}
		if err := writeVersion(path, format+1, release); err != nil {
			return "", err
		}
	}
	if second != "kubelith "+release {
		former = strings.TrimPrefix(second, "kubelith ")
	}
	return former, nil
}

// Adopt records that this release uses the directory, after the first start with it that is complete: until then,
// Former has the one of before. A full disk is no error: the record is for the next release.
func (d *Dir) Adopt() error {
	if d.former == "" {
		return nil
	}
	err := writeVersion(filepath.Join(d.path, "version"), d.format, d.release)
	if err != nil && !full(err) {
		return err
	}
	d.adopted.Store(err == nil)
	return nil
}

// Trial reports whether the release of before may still come back: the first start with this one is not complete.
func (d *Dir) Trial() bool { return d.former != "" && !d.adopted.Load() }

// Adopted returns the release with which the node of a data directory was ready last.
func Adopted(dir string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "version"))
	if err != nil {
		return "", unusable(dir, err)
	}
	_, second, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
	return strings.TrimPrefix(second, "kubelith "), nil
}

// writeVersion replaces the file so that a crash leaves the old or the new one.
func writeVersion(path string, format int, release string) error {
	if err := writeDurably(path, fmt.Sprintf("%d\nkubelith %s\n", format, release)); err != nil {
		return unusable(filepath.Dir(path), err)
	}
	return nil
}
