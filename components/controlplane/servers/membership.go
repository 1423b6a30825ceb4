package servers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"kubelith.io/kubelith/base/atomicfile"
)

// Membership is what a server keeps of the cluster that it shares with other servers: the file server/member.json. A
// server that has always been alone has none.
type Membership struct {
	// PeerURL is where the other servers reach this one's etcd: https://ADDRESS:PORT.
	PeerURL string `json:"peerURL"`
	// Joined is when the cluster admitted this server; zero for the first one.
	Joined time.Time `json:"joined,omitzero"`
	// Settings is the cluster's config.ClusterInfo when this server joined; empty for the first one.
	Settings json.RawMessage `json:"settings,omitempty"`
	// Servers are the addresses of the API on all servers: https://ADDRESS:PORT.
	Servers []string `json:"servers,omitempty"`
	// Witness means that this machine runs etcd and nothing else.
	Witness bool `json:"witness,omitempty"`
	// Removed means that the others have removed this server from the cluster.
	Removed bool `json:"removed,omitempty"`
}

// File is the path of the Membership in a data directory.
func File(dataDir string) string { return filepath.Join(dataDir, "server", "member.json") }

// Load returns nil for a server that has always been alone.
func Load(dataDir string) (*Membership, error) {
	data, err := os.ReadFile(File(dataDir))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) { // what is in the way is reported when the directory is taken
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var m Membership
	if err := json.Unmarshal(data, &m); err != nil || m.PeerURL == "" {
		return nil, fmt.Errorf("%s is damaged: restore it from a backup, or write {\"peerURL\": \"https://ADDRESS:2380\"} with this server's address", File(dataDir))
	}
	return &m, nil
}

// Save writes it, durably.
func (m *Membership) Save(dataDir string) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	path := File(dataDir)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(path, append(data, '\n'))
}

// Update changes what is stored, with do.
func Update(dataDir string, do func(*Membership)) error {
	m, err := Load(dataDir)
	if err != nil {
		return err
	}
	if m == nil {
		m = &Membership{}
	}
	before, _ := json.Marshal(m) // of our own type
	do(m)
	if after, _ := json.Marshal(m); string(after) == string(before) {
		return nil
	}
	return m.Save(dataDir)
}
