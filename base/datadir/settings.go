package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// SettingsFile has the settings that cannot change in the life of a cluster.
const SettingsFile = "cluster.json"

// Settings are the settings that the cluster's objects depend on: nodes, pods and Services would not fit others. A host
// that DHCP renames would become a second node, without the first one's volumes.
type Settings struct {
	NodeName      string   `json:"nodeName"`
	ClusterCIDR   []string `json:"clusterCIDR"`
	ServiceCIDR   []string `json:"serviceCIDR"`
	ClusterDomain string   `json:"clusterDomain"`
}

// ReadSettings returns them. A data directory in which no server has run has none: fs.ErrNotExist.
func ReadSettings(dir string) (Settings, error) {
	path := filepath.Join(dir, SettingsFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Settings{}, fmt.Errorf("data directory %s has no cluster: %w", dir, err)
	}
	if err != nil {
		return Settings{}, unusable(dir, err)
	}
	var s Settings
	if err := json.Unmarshal(data, &s); err != nil || s.NodeName == "" {
		return Settings{}, fmt.Errorf("%s is damaged: restore it, or remove it when no setting has changed", path)
	}
	return s, nil
}

// CheckSettings refuses settings that differ from those with which the cluster began. It accepts any in a cluster that
// was never started by a release that keeps them.
func CheckSettings(dir string, now Settings) error {
	then, err := ReadSettings(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, c := range []struct {
		what, key string
		then, now []string
	}{
		{"the node's name", "nodeName (--node-name)", []string{then.NodeName}, []string{now.NodeName}},
		{"the pods' network", "clusterCIDR (--cluster-cidr)", then.ClusterCIDR, now.ClusterCIDR},
		{"the Services' network", "serviceCIDR (--service-cidr)", then.ServiceCIDR, now.ServiceCIDR},
		{"the cluster's domain", "clusterDomain (--cluster-domain)", []string{then.ClusterDomain}, []string{now.ClusterDomain}},
	} {
		if !slices.Equal(c.then, c.now) {
			was := strings.Join(c.then, ",")
			return fmt.Errorf("%s is %s but was %s when the cluster was created, and it cannot change: set %s to %s", c.what, strings.Join(c.now, ","), was, c.key, was)
		}
	}
	return nil
}

// KeepSettings stores them; only the first call has an effect.
func (d *Dir) KeepSettings(now Settings) error {
	path := filepath.Join(d.path, SettingsFile)
	if exists(path) {
		return nil
	}
	data, err := json.MarshalIndent(now, "", "  ")
	if err != nil {
		return err
	}
	if err := writeDurably(path, string(data)+"\n"); err != nil {
		return unusable(d.path, err)
	}
	return nil
}

func ownerOf(info fs.FileInfo) (int, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
