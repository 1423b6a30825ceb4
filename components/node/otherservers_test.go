package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/config"
)

// TestServerOfAnotherCluster: a server that has a cluster does not join another one: it fails before it needs the token
// or changes anything.
func TestServerOfAnotherCluster(t *testing.T) {
	for name, has := range map[string]string{"data": "server/db/member/wal/0.wal", "an API that has answered": "server/token"} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, has), 0o700); err != nil {
			t.Fatal(err)
		}
		cfg := &config.Server{}
		cfg.DataDir, cfg.NodeName, cfg.Server = dir, "a", "https://192.0.2.1:6443"
		_, err := findServers(t.Context(), cfg, logrus.New())
		if err == nil || !strings.Contains(err.Error(), "has its own cluster: leave out --server, or run kubelith reset --data") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadDir(filepath.Join(dir, "server")); err != nil || len(left) != 1 {
			t.Errorf("%s: it changed %v, %v", name, left, err)
		}
	}
}

// TestAsJoined: a server that comes back to a cluster with other settings than those that it has taken does not go on.
func TestAsJoined(t *testing.T) {
	for name, change := range map[string]func(*config.Server){
		"":        func(*config.Server) {},
		"network": func(cfg *config.Server) { cfg.Network = "host-gw" },
		"profile": func(cfg *config.Server) { cfg.Profile = "cis" },
		"domain":  func(cfg *config.Server) { cfg.ClusterDomain = "other.example" },
		"pods":    func(cfg *config.Server) { cfg.ClusterCIDR = []string{"10.99.0.0/16"} },
	} {
		cfg := config.Default()
		settings, err := json.Marshal(cfg.ClusterInfo("v1.37.1", "v1"))
		if err != nil {
			t.Fatal(err)
		}
		change(cfg)
		if err := asJoined(cfg, settings); (err == nil) != (name == "") {
			t.Errorf("%q: %v", name, err)
		}
	}
}
