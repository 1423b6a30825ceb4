package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus/hooks/test"

	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/components/controlplane/snapshot/bucket"
	"kubelith.io/kubelith/components/controlplane/snapshot/bucket/buckettest"
)

func serveStore(t *testing.T) (*buckettest.Server, bucket.Options) {
	t.Helper()
	s, err := buckettest.New()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, bucket.Options{Endpoint: server.Listener.Addr().String(), Bucket: buckettest.Bucket, Folder: "f", Region: "us-east-1", AccessKey: buckettest.AccessKey,
		SecretKey: buckettest.SecretKey, Insecure: true, Lookup: "path", Timeout: time.Minute}
}

// put writes a file with the header of a snapshot.
func put(t *testing.T, dir, name, node, cluster string, day int) {
	t.Helper()
	h, err := json.Marshal(Header{Created: time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC), Cluster: cluster, Settings: datadir.Settings{NodeName: node}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, fmt.Sprintf("%s-%s-%d%s", name, node, day, Suffix)), magic+string(h)+"\n"+strings.Repeat("x", day))
}

// What is in the directory is in the store afterwards, and what is too much is not; nothing of other servers and
// clusters changes.
func TestSync(t *testing.T) {
	s, o := serveStore(t)
	b, err := bucket.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	theirs := t.TempDir()
	put(t, theirs, Scheduled, "web", "other", 4) // another cluster's server of this name, which saves at the same time
	for day := range 4 {
		put(t, theirs, Scheduled, "web-2", "ours", day+1) // another server, whose name begins with that of this one
	}
	files, err := List(theirs)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := Upload(t.Context(), b, f, nil); err != nil {
			t.Fatal(err)
		}
	}
	foreign, err := s.Keys()
	if err != nil || len(foreign) != 5 {
		t.Fatalf("%q, %v", foreign, err)
	}

	dir := t.TempDir()
	var told []string
	sync := func(k kinds) (File, error) {
		t.Helper()
		told = nil
		return k.sync(t.Context(), b, dir, "ours", "web", func(f File) { told = append(told, f.Name()) })
	}
	stored := func(want ...string) {
		t.Helper()
		var keys []string
		for _, name := range want {
			keys = append(keys, "f/"+name+Suffix)
		}
		keys = append(keys, foreign...)
		slices.Sort(keys)
		if got, err := s.Keys(); err != nil || !slices.Equal(got, keys) {
			t.Errorf("the store has %q, %v\nwant %q", got, err, keys)
		}
	}
	limit := kinds{Scheduled: 2, Upgrade: 1}
	for day := range 3 {
		put(t, dir, Scheduled, "web", "ours", day+1)
	}
	put(t, dir, "manual", "web", "ours", 1)
	put(t, dir, "manual", "web", "former", 2) // of a cluster that was on this machine
	write(t, filepath.Join(dir, "damaged-web-1"+Suffix), "x")
	newest, err := sync(limit)
	if err != nil || newest.Name() != "scheduled-web-3" || !slices.Equal(told, []string{"manual-web-1", "scheduled-web-2", "scheduled-web-3"}) {
		t.Errorf("copied %q, the newest %+v, %v", told, newest, err)
	}
	stored("manual-web-1", "scheduled-web-2", "scheduled-web-3")
	if _, err := sync(limit); err != nil || len(told) != 0 {
		t.Errorf("copied again: %q, %v", told, err)
	}

	// The name is taken by another cluster: that is reported, and does not stop the next copy.
	put(t, dir, Scheduled, "web", "ours", 4)
	put(t, dir, Upgrade, "web", "ours", 5)
	newest, err = sync(limit)
	if err == nil || !strings.Contains(err.Error(), "of another cluster: give each cluster its own --snapshot-s3-folder") || newest.Name() != "upgrade-web-5" {
		t.Errorf("the newest %s, %v", newest.Name(), err)
	}
	if err := os.Remove(filepath.Join(dir, "scheduled-web-4"+Suffix)); err != nil {
		t.Fatal(err)
	}

	put(t, dir, Scheduled, "web", "ours", 6)
	if _, err = sync(limit); err != nil {
		t.Error(err)
	}
	stored("manual-web-1", "scheduled-web-3", "scheduled-web-6", "upgrade-web-5")

	// One that was cut in the store is copied again.
	if err := b.Put(t.Context(), "scheduled-web-6"+Suffix, strings.NewReader(magic), int64(len(magic)), nil); err != nil {
		t.Fatal(err)
	}
	if _, err = sync(limit); err != nil || !slices.Equal(told, []string{"scheduled-web-6"}) {
		t.Errorf("copied %q, %v", told, err)
	}

	s.Away(true)
	if _, err = sync(limit); err == nil || !strings.Contains(err.Error(), "store "+o.Endpoint) {
		t.Errorf("away: %v", err)
	}
	s.Away(false)
	here, err := List(dir)
	if err != nil {
		t.Fatal(err)
	}
	there, err := ListStore(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	var both, only int
	for _, f := range Merge(here, there) {
		switch {
		case f.Path != "" && f.Store != "":
			both++
		case f.Store != "":
			only++
		}
	}
	if both != 4 || only != 5 {
		t.Errorf("%d are in both, %d in the store only", both, only)
	}
}

// TestCopies: a store that is away is tried again, or when the next one is saved; a start looks, too.
func TestCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _ := test.NewNullLogger()
		began := time.Now()
		var at, events []string
		s := &Server{opts: Options{Log: log}}
		s.copy = func(_ context.Context, uploaded func(File)) error {
			at = append(at, time.Since(began).String())
			if len(at) == 1 {
				return errors.New("away")
			}
			uploaded(File{Path: "/x" + Suffix})
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		saved := make(chan struct{}, 1)
		go func() {
			time.Sleep(30 * time.Minute)
			saved <- struct{}{}
		}()
		s.copies(ctx, saved, func(kind, reason, _ string) { events = append(events, kind+" "+reason) })
		if want := []string{"1m0s", "11m0s", "30m0s"}; !slices.Equal(at, want) {
			t.Errorf("copied at %q, want %q", at, want)
		}
		if want := []string{"Warning SnapshotUploadFailed", "Normal SnapshotUploaded", "Normal SnapshotUploaded"}; !slices.Equal(events, want) {
			t.Errorf("events %q", events)
		}
	})
}
