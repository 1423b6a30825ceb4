package etcd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A restored member has the keys of the copy, at later revisions than any that was given out, and under another name.
func TestCopyAndRestore(t *testing.T) {
	from, file, to := t.TempDir(), filepath.Join(t.TempDir(), "copy"), filepath.Join(t.TempDir(), "db")
	var copied Copied
	run(t, from, func(c *clientv3.Client) {
		for i := range 5 {
			if _, err := c.Put(t.Context(), fmt.Sprint("/", i), "x"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Delete(t.Context(), "/4"); err != nil {
			t.Fatal(err)
		}
		var err error
		if copied, err = Copy(t.Context(), filepath.Join(from, "etcd.sock"), file); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Put(t.Context(), "/later", "x"); err != nil {
			t.Fatal(err)
		}
	})
	if copied.Revision != 7 || copied.Size == 0 {
		t.Errorf("copied: %+v", copied)
	}
	o := options(to)
	o.Name = "other"
	if err := Restore(file, o); err != nil {
		t.Fatal(err)
	}
	clusters := map[uint64]bool{}
	check := func(c *clientv3.Client) error {
		keys, revision, err := Keys(t.Context(), c)
		if keys != 4 || revision != copied.Revision {
			t.Errorf("%d keys at revision %d", keys, revision)
		}
		status, statusErr := c.Status(t.Context(), Endpoint(o.Socket))
		if statusErr == nil {
			clusters[status.Header.ClusterId] = true
		}
		return errors.Join(err, statusErr)
	}
	if err := With(t.Context(), o, check); err != nil {
		t.Fatal(err)
	}
	// A second one with the same name and address is another cluster: members of the two do not answer each other.
	o.DataDir = filepath.Join(t.TempDir(), "db")
	if err := Restore(file, o); err != nil {
		t.Fatal(err)
	}
	if err := With(t.Context(), o, check); err != nil {
		t.Fatal(err)
	}
	if len(clusters) != 2 {
		t.Errorf("two restored clusters have the IDs %v", clusters)
	}
	if err := os.Truncate(file, copied.Size-1); err != nil {
		t.Fatal(err)
	}
	if err := Restore(file, options(filepath.Join(t.TempDir(), "db"))); err == nil {
		t.Error("a truncated copy was restored")
	}
}

// A renewed member has the keys of one that was copied while it did not run, also those that only its log has, at later
// revisions. It can be open to others.
func TestRenew(t *testing.T) {
	former := options(t.TempDir())
	err := With(t.Context(), former, func(c *clientv3.Client) error {
		_, err := c.Put(t.Context(), "/a", "x")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	to := options(t.TempDir())
	to.Peer = &Peer{URL: "https://192.0.2.1:2380"}
	for range 2 { // it can be repeated
		if err := os.RemoveAll(to.DataDir); err != nil {
			t.Fatal(err)
		}
		if err := Renew(t.Context(), former.DataDir, to); err != nil {
			t.Fatal(err)
		}
	}
	to.Peer = nil
	err = With(t.Context(), to, func(c *clientv3.Client) error {
		keys, revision, err := Keys(t.Context(), c)
		if keys != 1 || revision != 2 {
			t.Errorf("%d keys at revision %d", keys, revision)
		}
		members, memberErr := c.MemberList(t.Context())
		if memberErr != nil || len(members.Members) != 1 || members.Members[0].PeerURLs[0] != "https://192.0.2.1:2380" {
			t.Errorf("members %v, %v", members, memberErr)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
