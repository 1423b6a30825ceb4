package datadir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDataDirectoryOfOthers: a directory with another owner, or with a missing part, is refused before anything is
// written.
func TestDataDirectoryOfOthers(t *testing.T) {
	const (
		ca     = "server/tls/cluster-ca.crt"
		member = "server/db/member/snap/db"
	)
	for name, c := range map[string]struct {
		files []string
		want  string // empty: taken
	}{
		"new":                              {},
		"a new file system":                {files: []string{"lost+found/x"}},
		"prepared by people":               {files: []string{"server/manifests/a.yaml", "agent/images/a.tar", "agent/static-pods/p.yaml", "plugins/admission/p"}},
		"restored from a backup":           {files: []string{ca, member, "server/cred/encryption.yaml", "server/token"}},
		"a first start that was killed":    {files: []string{"version=1\nkubelith v1\n", "lock", "id=one"}},
		"killed with keys":                 {files: []string{"version=1\nkubelith v1\n", ca, "cluster.json={}", "agent/containerd/x"}},
		"a home directory":                 {files: []string{".bashrc", "Documents/a", "b"}, want: "has other files (.bashrc, Documents, b): use a separate directory for --data-dir"},
		"a project":                        {files: []string{"server/main.go", "plugins/x/y"}, want: "(server/main.go, plugins/x)"},
		"k3s":                              {files: []string{"server/db/state.db", "agent/etc/x", "data/current"}, want: "(agent/etc)"},
		"late mount of server":             {files: []string{"version=1\nkubelith v1\n", "id=one", "cluster.json={}", "server/"}, want: "has a cluster's cluster.json, but"},
		"server gone, of an older one":     {files: []string{"version=1\nkubelith v1\n", "agent/containerd/x"}, want: "for a new cluster run kubelith reset --data first"},
		"agent only":                       {files: []string{"agent/containerd/x"}, want: "a cluster's agent/containerd, but"},
		"plugins only":                     {files: []string{"plugins/state/x"}, want: "a cluster's plugins/state, but"},
		"database gone":                    {files: []string{"version=1\nkubelith v1\n", ca, "server/token"}, want: "server/db/member) is missing"},
		"keys gone":                        {files: []string{"version=1\nkubelith v1\n", member}, want: "its CA ("},
		"reset after an upgrade":           {files: []string{"upgrade-cluster.lock"}},
		"an upgrade":                       {files: []string{"version=1\nkubelith v1\n", ca, member, "upgrade/state.json"}},
		"an upgrade that was going back":   {files: []string{"version=1\nkubelith v1\n", ca, member, "upgrade/returning"}, want: "run the same kubelith upgrade again"},
		"a cluster, and what is beside it": {files: []string{"version=1\nkubelith v1\n", ca, member, "notes"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "d")
			put(t, dir, c.files...)
			err := CheckCluster(dir)
			if err == nil {
				var d *Dir
				if d, err = Open(dir, "v1"); err == nil {
					d.Close()
				}
			} else if exists(filepath.Join(dir, "lock")) {
				t.Error("it was locked")
			}
			switch {
			case c.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")):
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestSettings(t *testing.T) {
	begun := Settings{NodeName: "one", ClusterCIDR: []string{"10.42.0.0/16"}, ServiceCIDR: []string{"10.43.0.0/16"}, ClusterDomain: "cluster.local"}
	d := mustOpen(t, t.TempDir(), "v1")
	defer d.Close()
	if err := CheckSettings(d.path, begun); err != nil {
		t.Errorf("a cluster without a record: %v", err)
	}
	if err := d.KeepSettings(begun); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Settings){
		"": func(*Settings) {},
		"the node's name is two but was one when the cluster was created, and it cannot change: set nodeName (--node-name) to one": func(s *Settings) { s.NodeName = "two" },
		"set clusterCIDR (--cluster-cidr) to 10.42.0.0/16":                                                                         func(s *Settings) { s.ClusterCIDR = []string{"10.9.0.0/16"} },
		"set serviceCIDR (--service-cidr) to 10.43.0.0/16":                                                                         func(s *Settings) { s.ServiceCIDR = append(s.ServiceCIDR, "fd43::/112") },
		"set clusterDomain (--cluster-domain) to cluster.local":                                                                    func(s *Settings) { s.ClusterDomain = "example.org" },
	} {
		now := begun
		change(&now)
		err := CheckSettings(d.path, now)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("error %v, want %q", err, want)
		}
		if err := d.KeepSettings(now); err != nil || CheckSettings(d.path, begun) != nil {
			t.Errorf("the record changed: %v", err)
		}
	}
	if err := os.WriteFile(filepath.Join(d.path, SettingsFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := CheckSettings(d.path, begun); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("error %v", err)
	}
}

func TestNested(t *testing.T) {
	base := t.TempDir()
	if err := os.Mkdir(base+"/real", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(base+"/real", base+"/link"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"/real/d", "/real/d", true}, {"/real/d", "/real/d/run", true}, {"/real/d/run", "/real/d", true}, {"/real/d", "/link/d/run", true},
		{"/real/d", "/real/d2", false}, {"/real/d", "/real/run", false},
	} {
		if err := Nested(map[string]string{"--data-dir": base + c.a, "--run-dir": base + c.b}); (err != nil) != c.want {
			t.Errorf("%s and %s: %v", c.a, c.b, err)
		}
	}
}

// Other users cannot put files into directories that root trusts.
func TestPrivate(t *testing.T) {
	base := t.TempDir()
	for _, dir := range []string{"d", "r", "k"} {
		if err := os.Mkdir(filepath.Join(base, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(base, dir), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	d := mustOpen(t, filepath.Join(base, "d"), "v1")
	defer d.Close()
	if err := d.Hold(filepath.Join(base, "r"), filepath.Join(base, "k")); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"d", "r", "k"} {
		if info, err := os.Stat(filepath.Join(base, dir)); err != nil || info.Mode().Perm()&0o022 != 0 {
			t.Errorf("%s: mode %v, %v", dir, info.Mode(), err)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Mkdir(base+"/other", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(base+"/other", 65534, 65534); err != nil {
		t.Skip(err)
	}
	if err := d.Hold(base+"/other", ""); err == nil || !strings.Contains(err.Error(), "belongs to user 65534") {
		t.Errorf("error %v", err)
	}
}

// TestCheckClusterOfFile: a file in the place of the directory is not an interrupted restore; Open reports what it is.
func TestCheckClusterOfFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := CheckCluster(dir); err != nil && strings.Contains(err.Error(), "interrupted") {
		t.Error(err)
	}
}
