package datadir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// put writes files below base; one whose name ends with a slash is a directory.
func put(t *testing.T, base string, names ...string) {
	t.Helper()
	for _, name := range names {
		name, text, _ := strings.Cut(name, "=")
		path := filepath.Join(base, name)
		if strings.HasSuffix(name, "/") {
			path, name = filepath.Join(path, "."), ""
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if name == "" {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOwnerOfKubeletDirectory: the state of a host before a start, whether the start takes the kubelet's directory, and
// whether it is ours then.
func TestOwnerOfKubeletDirectory(t *testing.T) {
	const containerd = "d/agent/containerd/io.containerd.metadata.v1.bolt/meta.db"
	for name, c := range map[string]struct {
		files []string
		want  string // of the refusal; empty: it is taken
	}{
		"a new machine":                         {},
		"put there before by people":            {files: []string{"k/seccomp/p.json", "k/config.json", "k/device-plugins/d.sock", "k/plugins/driver/csi.sock"}},
		"kubeadm":                               {files: []string{"k/config.yaml", "k/pki/x", "k/pods/u/x"}, want: "k is another kubelet's (it has config.yaml, pki, pods): remove that cluster first, or use another --kubelet-root-dir"},
		"k3s":                                   {files: []string{"k/pods/u/x", "k/cpu_manager_state"}, want: "another kubelet's (it has pods, cpu_manager_state)"},
		"k3s, refused start of an older one":    {files: []string{"k/pods/u/x", "d/version=1", "d/lock"}, want: "another kubelet's"},
		"an older release ran here":             {files: []string{"k/pods/u/x", "d/version=1", containerd}},
		"it runs since the last boot":           {files: []string{"k/pods/u/x", "d/version=1", "r/data-dir=BASE/d", "r/containerd/x"}},
		"an older release of other directories": {files: []string{"k/pods/u/x", "d/version=1", "r/data-dir=/other", "r/containerd/x"}, want: "another kubelet's"},
		"kubeadm where an older release ran":    {files: []string{"k/config.yaml", "k/pods/u/x", "d/version=1", containerd}, want: "another kubelet's"},
		"never taken by this one":               {files: []string{"k/pods/u/x", "d/version=1", "d/id=one", containerd}, want: "another kubelet's"},
		"ours":                                  {files: []string{"k/pods/u/x", "k/.kubelith=BASE/d\none\n", "d/version=1", "d/id=one", containerd}},
		"ours, moved":                           {files: []string{"k/pods/u/x", "k/.kubelith=/before\none\n", "d/version=1", "d/id=one"}},
		"ours, killed before the id":            {files: []string{"k/pods/u/x", "k/.kubelith=BASE/d\none\n", "d/version=1"}},
		"another Kubelith's":                    {files: []string{"k/pods/u/x", "k/.kubelith=BASE/e\ntwo\n", "e/version=1", "d/version=1", "d/id=one"}, want: "k belongs to --data-dir BASE/e: remove that one with kubelith reset --data --data-dir BASE/e, or use another --kubelet-root-dir"},
		"the data directory is not mounted":     {files: []string{"k/pods/u/x", "k/.kubelith=BASE/d\none\n"}, want: "d is empty, but BASE/k has pods of its node"},
		"its backup was restored":               {files: []string{"k/pods/u/x", "k/.kubelith=BASE/d\none\n", "d/server/tls/cluster-ca.crt"}},
		"a Kubelith's that is gone":             {files: []string{"k/pods/u/x", "k/.kubelith=BASE/e\ntwo\n"}},
		"another Kubelith's containers":         {files: []string{"r/data-dir=BASE/e\ntwo\n", "r/containerd/x", "e/version=1"}, want: "r belongs to --data-dir BASE/e"},
		"a run directory without containers":    {files: []string{"r/data-dir=BASE/e\ntwo\n", "e/version=1"}},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			for _, f := range c.files {
				put(t, base, strings.ReplaceAll(f, "BASE", base))
			}
			before, _ := os.ReadFile(filepath.Join(base, "k", KubeletMark))
			examined := Examine(filepath.Join(base, "d"), filepath.Join(base, "r"), filepath.Join(base, "k"))
			d := mustOpen(t, filepath.Join(base, "d"), "v1")
			defer d.Close()
			if err := Examine(filepath.Join(base, "d"), filepath.Join(base, "r"), filepath.Join(base, "k")); err != nil {
				t.Errorf("while it runs: %v", err)
			}
			err := d.Hold(filepath.Join(base, "r"), filepath.Join(base, "k"))
			if (examined == nil) != (err == nil) || err != nil && err.Error() != examined.Error() {
				t.Errorf("check says %v, the start %v", examined, err)
			}
			owns := OwnsKubelet("/", filepath.Join(base, "d"), filepath.Join(base, "r"), filepath.Join(base, "k"))
			if c.want == "" {
				if err != nil || !owns {
					t.Errorf("refused: %v; ours: %v", err, owns)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), strings.ReplaceAll(c.want, "BASE", base)) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if after, _ := os.ReadFile(filepath.Join(base, "k", KubeletMark)); string(after) != string(before) || owns != strings.Contains(c.want, "is empty") {
				t.Errorf("marked as %q, was %q; ours: %v", after, before, owns)
			}
		})
	}
}

// A node without a kubelet leaves the directory alone, and does not own it later.
func TestWithoutKubelet(t *testing.T) {
	base := t.TempDir()
	put(t, base, "k/pods/u/x", "d/version=1", "d/agent/containerd/io.containerd.metadata.v1.bolt/meta.db")
	d := mustOpen(t, filepath.Join(base, "d"), "v1")
	defer d.Close()
	if err := d.Hold(filepath.Join(base, "r"), ""); err != nil {
		t.Fatal(err)
	}
	if names, _ := os.ReadDir(filepath.Join(base, "k")); len(names) != 1 {
		t.Errorf("the kubelet's directory has %v", names)
	}
	if OwnsKubelet("/", d.path, filepath.Join(base, "r"), filepath.Join(base, "k")) {
		t.Error("the kubelet's directory is ours")
	}
}

// The socket of a running kubelet reveals it, at whatever path its directory was named.
func TestKubeletRuns(t *testing.T) {
	base := t.TempDir()
	put(t, base, "real/x", "proc/net/unix=Num RefCount Protocol Flags Type St Inode Path\n0000000000000000: 00000002 00000000 00010000 0001 01 20842 "+base+"/link/pod-resources/kubelet.sock\n")
	if err := os.Symlink(base+"/real", base+"/link"); err != nil {
		t.Fatal(err)
	}
	if !kubeletRuns(base, base+"/real") || kubeletRuns(base, base+"/proc") {
		t.Error("not seen, or at the wrong place")
	}
}
