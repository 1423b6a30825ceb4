package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"filippo.io/age"
	"github.com/robfig/cron/v3"
	"github.com/sirupsen/logrus/hooks/test"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/controlplane/etcd"
)

// server returns a data directory with keys, a manifest and a running etcd with four objects.
func server(t *testing.T) Source {
	t.Helper()
	dir := t.TempDir()
	s := Source{
		DataDir: dir, Socket: filepath.Join(t.TempDir(), "etcd.sock"), ConfigFile: filepath.Join(t.TempDir(), "config.yaml"),
		Settings: datadir.Settings{NodeName: "first", ClusterCIDR: []string{"10.9.0.0/16"}, ServiceCIDR: config.Default().ServiceCIDR, ClusterDomain: "cluster.local"},
		NodeIPs:  []string{"10.0.0.1"}, Kubelith: "v1", Kubernetes: "v1.37.1",
	}
	if _, err := pki.Ensure(pki.Options{Dir: pki.Dir(dir), NodeName: "first", ClusterDomain: "cluster.local"}); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "server/cred/encryption.yaml"), "key")
	write(t, filepath.Join(dir, "server/manifests/web.yaml"), "ours")
	write(t, filepath.Join(dir, "server/manifests/other.yaml"), "other")
	write(t, s.ConfigFile, "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\nnodeName: first\nprofile: cis\n")
	ready, ended := make(chan struct{}), make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		ended <- etcd.With(ctx, etcd.Options{DataDir: filepath.Join(dir, "server/db"), Socket: s.Socket, Name: "first", Zap: zap.NewNop()}, func(c *clientv3.Client) error {
			for _, key := range []string{"minions/first", "leases/kube-system/kubelith", "masterleases/10.0.0.1", "pods/a"} {
				if _, err := c.Put(ctx, "/registry/"+key, "x"); err != nil {
					return err
				}
			}
			close(ready)
			<-ctx.Done()
			return nil
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	return s
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The ways to encrypt, and what decrypts.
func ways(t *testing.T) map[string]struct {
	keys       Keys
	identities []age.Identity
} {
	t.Helper()
	phrase, keyFile := filepath.Join(t.TempDir(), "phrase"), filepath.Join(t.TempDir(), "key")
	write(t, phrase, "correct horse battery\n")
	own, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	write(t, keyFile, "# mine\n"+own.String()+"\n")
	byPhrase, err := Identities(phrase, "")
	if err != nil {
		t.Fatal(err)
	}
	byKey, err := Identities("", keyFile)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]struct {
		keys       Keys
		identities []age.Identity
	}{
		"plain":      {},
		"passphrase": {Keys{PassphraseFile: phrase}, byPhrase},
		"key":        {Keys{Recipients: []string{own.Recipient().String()}}, byKey},
	}
}

func TestSaveAndRestore(t *testing.T) {
	s := server(t)
	for name, way := range ways(t) {
		t.Run(name, func(t *testing.T) {
			s.Keys = way.keys
			dir := t.TempDir()
			f, err := SaveFile(t.Context(), s, dir, "test")
			if err != nil {
				t.Fatal(err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || !strings.HasPrefix(f.Name(), "test-first-") {
				t.Errorf("%v, %v, %s", left, err, f.Name())
			}
			content, err := os.ReadFile(f.Path)
			if err != nil {
				t.Fatal(err)
			}
			if s.Keys.kind() != "" && bytes.Contains(content, []byte("minions/first")) {
				t.Error("the database can be read without a key")
			}
			restore(t, content, way.identities)
			faults(t, content, way.identities)
		})
	}
}

// restore restores to a machine of another name.
func restore(t *testing.T, content []byte, keys []age.Identity) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	write(t, filepath.Join(dir, "server/manifests/web.yaml"), "theirs")
	disk := t.TempDir() // etcd's own
	if err := os.Symlink(disk, filepath.Join(dir, "server/db")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(disk, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	to := Target{DataDir: dir, Socket: filepath.Join(t.TempDir(), "etcd.sock"), NodeName: "second", ConfigFile: filepath.Join(t.TempDir(), "etc/config.yaml"), Kubelith: "v2", Kubernetes: "v1.38.0"}
	// What an interrupted restore leaves; the rest of the disk stays.
	write(t, filepath.Join(disk, "member/half"), "x")
	write(t, filepath.Join(disk, "former/db"), "x")
	if _, err := Restore(t.Context(), bytes.NewReader(content), keys, to); err == nil || !strings.Contains(err.Error(), "has a cluster (server/db/member)") {
		t.Errorf("onto a disk with a cluster: %v", err)
	}
	write(t, filepath.Join(dir, datadir.Restoring, "half"), "x")
	r, err := Restore(t.Context(), bytes.NewReader(content), keys, to)
	if err != nil {
		t.Fatal(err)
	}
	if r.Keys != 4 || !slices.Equal(r.Kept, []string{"server/manifests/web.yaml"}) || !r.ConfigWritten || !slices.Equal(r.LeftOut, []string{"nodeName"}) {
		t.Errorf("restored %+v", r)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "server/manifests/web.yaml"): "theirs", filepath.Join(dir, "server/manifests/other.yaml"): "other",
		filepath.Join(dir, "server/cred/encryption.yaml"): "key",
		to.ConfigFile: "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\nprofile: cis\nclusterCIDR:\n    - 10.9.0.0/16\n",
	} {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if got, err := datadir.ReadSettings(dir); err != nil || got.NodeName != "second" || got.ClusterCIDR[0] != "10.9.0.0/16" {
		t.Errorf("settings %+v, %v", got, err)
	}
	if err := datadir.CheckCluster(dir); err != nil {
		t.Error(err)
	}
	for path, want := range map[string]bool{"former/db": true, "lost+found": true, "member/half": false} {
		if exists(filepath.Join(disk, path)) != want {
			t.Errorf("%s is on the disk: %t", path, !want)
		}
	}
	if _, err := clusterOf(pki.Dir(dir)); err != nil {
		t.Error(err)
	}
	member := etcd.Options{DataDir: disk, Socket: to.Socket, Name: "second", Zap: zap.NewNop()}
	err = etcd.With(t.Context(), member, func(c *clientv3.Client) error {
		got, err := c.Get(t.Context(), "/", clientv3.WithPrefix())
		if err == nil && (len(got.Kvs) != 1 || string(got.Kvs[0].Key) != "/registry/pods/a") {
			t.Errorf("etcd has %v", got.Kvs)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := Restore(t.Context(), bytes.NewReader(content), keys, to); err == nil || !strings.Contains(err.Error(), "has a cluster") {
		t.Errorf("a second restore: %v", err)
	}
}

// faults: a file that is not as it was written is refused, and nothing is left.
func faults(t *testing.T, content []byte, keys []age.Identity) {
	t.Helper()
	changed := func(at int) []byte {
		c := slices.Clone(content)
		c[at] ^= 1
		return c
	}
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"truncated":       {content[:len(content)-1], "truncated or damaged"},
		"half":            {content[:len(content)/2], "truncated"},
		"no body":         {content[:bytes.Index(content, []byte("}\n"))], "truncated"},
		"more":            {append(slices.Clone(content), "x"...), "truncated or damaged"},
		"changed":         {changed(len(content) - 1), ""}, // of a checksum: elsewhere a bit may be of no effect
		"another program": {[]byte("SQLite format 3"), "not a snapshot"},
		"later format":    {append([]byte("kubelith snapshot 2\n"), content[len(magic):]...), "later release"},
		"header":          {bytes.Replace(content, []byte(`"revision":`), []byte(`"revision":1`), 1), ""},
	} {
		dir := filepath.Join(t.TempDir(), "data")
		_, err := Restore(t.Context(), bytes.NewReader(c.content), keys, Target{DataDir: dir, Socket: "/s/etcd.sock", NodeName: "x", Kubelith: "v1", Kubernetes: "v1.37.1"})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
		filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				t.Errorf("%s: %s is left", name, path)
			}
			return nil
		})
	}
}

func TestWrongKeys(t *testing.T) {
	s := server(t)
	all := ways(t)
	other := filepath.Join(t.TempDir(), "phrase")
	write(t, other, "another passphrase")
	wrong, err := Identities(other, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"passphrase", "key"} {
		s.Keys = all[name].keys
		f, err := SaveFile(t.Context(), s, t.TempDir(), "test")
		if err != nil {
			t.Fatal(err)
		}
		for what, c := range map[string]struct {
			keys []age.Identity
			want string
		}{"wrong": {wrong, "is wrong"}, "none": {nil, "is encrypted with a " + name}} {
			in, err := os.Open(f.Path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Verify(t.Context(), in, c.keys, t.TempDir()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
			in.Close()
		}
	}
	readable := filepath.Join(t.TempDir(), "phrase")
	write(t, readable, "correct horse battery")
	if err := os.Chmod(readable, 0o644); err != nil {
		t.Fatal(err)
	}
	short := filepath.Join(t.TempDir(), "phrase")
	write(t, short, "secret")
	for want, keys := range map[string]Keys{
		"can be read by others":   {PassphraseFile: readable},
		"shorter than":            {PassphraseFile: short},
		"does not exist":          {PassphraseFile: short + "x"},
		"not a public key of age": {Recipients: []string{"ssh-rsa AAAA"}},
	} {
		if err := keys.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", keys, err)
		}
	}
}

// An interrupted restore is refused by the server, and can be run again.
func TestInterruptedRestore(t *testing.T) {
	s := server(t)
	var content bytes.Buffer
	if _, err := save(t.Context(), s, nil, t.TempDir(), &content); err != nil {
		t.Fatal(err)
	}
	to := Target{DataDir: filepath.Join(t.TempDir(), "data"), Socket: filepath.Join(t.TempDir(), "etcd.sock"), NodeName: "first", Kubelith: "v1", Kubernetes: "v1.37.1"}
	if _, err := Restore(t.Context(), bytes.NewReader(content.Bytes()), nil, to); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(to.DataDir, datadir.Restoring), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := datadir.CheckCluster(to.DataDir); err == nil || !strings.Contains(err.Error(), "run kubelith snapshot restore again") {
		t.Errorf("the server starts: %v", err)
	}
	if _, err := Restore(t.Context(), bytes.NewReader(content.Bytes()), nil, to); err != nil {
		t.Fatal(err)
	}
	if err := datadir.CheckCluster(to.DataDir); err != nil {
		t.Error(err)
	}
}

func TestFits(t *testing.T) {
	for theirs, want := range map[string]string{
		"v1.37.0":          "",
		"v1.36.9+kubelith": "",
		"v1.35.0":          "reads data that is at most one minor release older",
		"v1.38.0":          "restore it with that release",
		"v2.0.0":           "restore it with that release",
		"new":              "damaged",
	} {
		err := fits(Header{Kubernetes: theirs}, Target{Kubernetes: "v1.37.1+kubelith"})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", theirs, err)
		}
	}
}

func TestPrune(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{
		"scheduled-a-1", "scheduled-a-2", "scheduled-a-3", "scheduled-b-1", "manual-a-1", "scheduled-a-b-1",
		"scheduled-a-other-1", "scheduled-a-other-2", "scheduled-a-other-3",
	} {
		cluster := "this"
		if strings.Contains(name, "other") {
			cluster = "other"
		}
		node := strings.Trim(strings.TrimPrefix(strings.TrimPrefix(strings.Replace(name, "-other", "", 1), "scheduled-"), "manual-"), "-123")
		write(t, filepath.Join(dir, name+Suffix), fmt.Sprintf("%s{\"created\":\"2026-01-0%dT00:00:00Z\",\"cluster\":%q,\"settings\":{\"nodeName\":%q}}\n",
			magic, i+1, cluster, node))
	}
	write(t, filepath.Join(dir, "strange"+Suffix), "x")
	deleted, err := prune(dir, Scheduled, "a", "this", 2, "")
	if err != nil || len(deleted) != 1 || deleted[0].Name() != "scheduled-a-1" {
		t.Errorf("deleted %+v, %v", deleted, err)
	}
	all, err := List(dir)
	var names []string
	for _, f := range all {
		names = append(names, f.Name())
	}
	if want := []string{"scheduled-a-other-3", "scheduled-a-other-2", "scheduled-a-other-1", "scheduled-a-b-1", "manual-a-1", "scheduled-b-1", "scheduled-a-3", "scheduled-a-2", "strange"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("listed %q, %v", names, err)
	}
	// The clock was ahead when the others were saved: the one that was just saved still stays.
	if deleted, err := prune(dir, Scheduled, "a", "this", 1, filepath.Join(dir, "scheduled-a-2"+Suffix)); err != nil || len(deleted) != 1 || deleted[0].Name() != "scheduled-a-3" {
		t.Errorf("deleted %+v, %v", deleted, err)
	}
}

// TestAhead: what was saved while the clock was ahead counts as the oldest, here and in a store.
func TestAhead(t *testing.T) {
	at := func(name string, hours int) File {
		return File{Path: name, Header: Header{Created: time.Now().Add(time.Duration(hours) * time.Hour), Settings: datadir.Settings{NodeName: "a"}}}
	}
	all := []File{at("scheduled-a-ahead", 1000), at("scheduled-a-new", -1), at("scheduled-a-old", -2)}
	for keep, want := range [][]string{
		{"scheduled-a-new", "scheduled-a-old", "scheduled-a-ahead"}, {"scheduled-a-old", "scheduled-a-ahead"}, {"scheduled-a-ahead"}, nil,
	} {
		_, rest := kinds{Scheduled: keep}.limited(all, "a")
		var names []string
		for _, f := range rest {
			names = append(names, f.Name())
		}
		if !slices.Equal(names, want) {
			t.Errorf("of %d, %q are too many, want %q", keep, names, want)
		}
	}
}

// TestLast: the schedule goes on from this server's last scheduled snapshot, whatever was saved by hand or by another
// server, and whenever the clock was ahead. The metrics are about the newest one of this server.
func TestLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _ := test.NewNullLogger()
		hour := func(n int) string { return time.Now().Add(time.Duration(n) * time.Hour).UTC().Format(time.RFC3339) }
		for name, c := range map[string]struct {
			files       map[string]string // name: node and time
			last, newer int               // hours from now
			none        bool
		}{
			"none":              {nil, 0, 0, true},
			"one":               {map[string]string{"scheduled-a-1": "a " + hour(-5)}, -5, -5, false},
			"one saved by hand": {map[string]string{"scheduled-a-1": "a " + hour(-5), "manual-a-1": "a " + hour(-1)}, -5, -1, false},
			"only by hand":      {map[string]string{"manual-a-1": "a " + hour(-1)}, 0, -1, false},
			"another server's":  {map[string]string{"scheduled-a-1": "a " + hour(-5), "scheduled-a-b-1": "a-b " + hour(-1)}, -5, -5, false},
			"of the future":     {map[string]string{"scheduled-a-1": "a " + hour(-5), "scheduled-a-2": "a " + hour(9000)}, -5, -5, false},
			"damaged":           {map[string]string{"scheduled-a-1": "a " + hour(-5), "scheduled-a-2": ""}, -5, -5, false},
		} {
			dir := t.TempDir()
			for file, of := range c.files {
				node, created, _ := strings.Cut(of, " ")
				write(t, filepath.Join(dir, file+Suffix), fmt.Sprintf("%s{\"created\":%q,\"settings\":{\"nodeName\":%q}}\n", magic, created, node))
			}
			s := &Server{opts: Options{Dir: dir, Log: log, Source: Source{DataDir: "/nonexistent", Settings: datadir.Settings{NodeName: "a"}}}}
			if got := time.Until(s.last()); got != time.Duration(c.last)*time.Hour {
				t.Errorf("%s: the last scheduled one %s from now, want %d h", name, got, c.last)
			}
			all, err := List(dir)
			if err != nil {
				t.Fatal(err)
			}
			f, ok := newestOf(all, "a", func(File) bool { return true })
			if ok == c.none || ok && time.Until(f.Created) != time.Duration(c.newer)*time.Hour {
				t.Errorf("%s: the newest is %s, %v, want %d h from now", name, f.Created, ok, c.newer)
			}
		}
	})
}

// TestEnoughToUnpack: a snapshot that does not fit is refused before it is unpacked.
func TestEnoughToUnpack(t *testing.T) {
	dir := t.TempDir()
	if other, err := os.MkdirTemp("/dev/shm", "kubelith"); err == nil { // etcd's disk, or a link to it
		defer os.RemoveAll(other)
		data := t.TempDir()
		if err := errors.Join(os.Mkdir(filepath.Join(data, "server"), 0o700), os.Symlink(other, filepath.Join(data, "server/db"))); err != nil {
			t.Fatal(err)
		}
		if err := enoughForEtcd(Header{DatabaseBytes: 1 << 60}, data); err == nil || !strings.Contains(err.Error(), "the restored database takes") {
			t.Errorf("a disk of etcd's that is too small: %v", err)
		}
		os.RemoveAll(other)
		if err := enoughForEtcd(Header{DatabaseBytes: 1}, data); err == nil {
			t.Error("a link to nothing is accepted")
		}
	}
	if err := enoughToUnpack(Header{DatabaseBytes: 1 << 20}, dir); err != nil {
		t.Error(err)
	}
	if err := enoughToUnpack(Header{DatabaseBytes: 1 << 60}, dir); err == nil || !strings.Contains(err.Error(), "free space there") || strings.Contains(err.Error(), "\n") {
		t.Errorf("larger than any disk: %v", err)
	}
	if err := enoughToUnpack(Header{DatabaseBytes: -1}, dir); !errors.Is(err, errDamaged) {
		t.Errorf("less than nothing: %v", err)
	}
}

// TestSchedule: one that failed is tried again, one that is overdue waits until the start is over.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		schedule, err := cron.ParseStandard("0 */12 * * *")
		if err != nil {
			t.Fatal(err)
		}
		log, _ := test.NewNullLogger()
		began := time.Now() // midnight UTC
		var at, events []string
		s := &Server{opts: Options{Dir: filepath.Join(t.TempDir(), "none"), Schedule: schedule, Retention: 2, Log: log, Source: Source{DataDir: "/nonexistent"}}}
		s.save = func(context.Context) (File, error) {
			at = append(at, time.Since(began).String())
			if len(at) == 1 {
				return File{}, errors.New("disk full")
			}
			return File{Header: Header{Created: time.Now()}}, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Hour)
		defer cancel()
		done := 0
		s.loop(ctx, func(kind, reason, _ string) { events = append(events, kind+" "+reason) }, func() { done++ })
		if done != 2 {
			t.Errorf("%d snapshots were reported", done)
		}
		if want := []string{"12h0m0s", "12h10m0s", "24h0m0s"}; !slices.Equal(at, want) {
			t.Errorf("saved at %q, want %q", at, want)
		}
		if want := []string{"Warning SnapshotFailed", "Normal SnapshotSaved", "Normal SnapshotSaved"}; !slices.Equal(events, want) {
			t.Errorf("events %q", events)
		}
	})
}
