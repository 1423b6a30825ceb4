package upgrade

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"kubelith.io/kubelith/base/atomicfile"
	"kubelith.io/kubelith/base/datadir"
)

// phase is how far an upgrade is. There is none before the service is stopped, as nothing has changed until then.
type phase string

const (
	// stopping: the service may be down. Program and data are the old ones.
	stopping phase = "stopping"
	// trying: the copy of the data is complete. The program may be the new one, and may have been started.
	trying phase = "trying"
	// returning: the new program did not become ready. What was before is put back.
	returning phase = "returning"
)

// state is what an upgrade that was interrupted goes on with.
type state struct {
	Phase phase `json:"phase"`
	// File is the new program as the user named it, and Installed the path of the service's program.
	File      string  `json:"file"`
	Installed string  `json:"installed"`
	Old       Program `json:"old"`
	New       Program `json:"new"`
	// Began is when the service was first started with the new program.
	Began time.Time `json:"began,omitzero"`
	// Data are the names in the data directory that were copied; those that did not exist are not in Copied.
	Data   []string `json:"data,omitempty"`
	Copied []string `json:"copied,omitempty"`
	// Snapshot is the path of the one that was saved before.
	Snapshot string `json:"snapshot,omitempty"`
	// Adopted is the release with which the node was ready last, before; empty if that is unknown.
	Adopted string `json:"adopted,omitempty"`
	// Why the new program is given up.
	Why string `json:"why,omitempty"`
	// HandOver: the old program knows this command too, and finishes what the new one was interrupted in.
	HandOver bool `json:"handOver,omitempty"`
}

func stateFile(dataDir string) string { return filepath.Join(dataDir, datadir.Upgrading, "state.json") }

// copies has the copies of data.
func copies(dataDir string) string { return filepath.Join(dataDir, datadir.Upgrading, "data") }

// load returns nil where no upgrade was interrupted.
func load(dataDir string) (*state, error) {
	text, err := os.ReadFile(stateFile(dataDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(text, &s); err != nil || s.Installed == "" {
		return nil, fmt.Errorf("%s is damaged: an upgrade was interrupted: move the file *.previous beside the installed program "+
			"back in its place, and remove %s", stateFile(dataDir), filepath.Dir(stateFile(dataDir)))
	}
	return &s, nil
}

// save stores the state, durably.
func (s *state) save(dataDir string) error {
	if err := os.MkdirAll(filepath.Dir(stateFile(dataDir)), 0o700); err != nil {
		return err
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(stateFile(dataDir), append(text, '\n'))
}

// forget removes the state and the copies: the state first, as the copies without it mean nothing.
func forget(dataDir string) error {
	if err := os.Remove(stateFile(dataDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := atomicfile.SyncDir(filepath.Dir(stateFile(dataDir))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(filepath.Dir(stateFile(dataDir)))
}
