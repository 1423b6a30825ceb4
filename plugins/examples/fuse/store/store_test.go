package store

import (
	"bytes"
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/plugins/examples/fuse/store/storetest"
)

// stores are one of each kind.
func stores(t *testing.T) map[string]Store {
	t.Helper()
	server := httptest.NewServer(&storetest.Server{})
	t.Cleanup(server.Close)
	out := map[string]Store{}
	for name, c := range map[string]Config{
		"bucket":    {Endpoint: server.URL, Bucket: storetest.Bucket, AccessKey: "a", SecretKey: "b", Prefix: "some"},
		"directory": {Directory: t.TempDir(), Prefix: "some"},
	} {
		s, err := Open(c.Sub("volume"))
		if err != nil {
			t.Fatal(err)
		}
		out[name] = s
	}
	return out
}

func TestStores(t *testing.T) {
	for name, s := range stores(t) {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			if err := s.Check(ctx); err != nil {
				t.Fatal(err)
			}
			meta := Meta{Known: true, Mode: 0o640, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Time: time.Unix(1700000000, 0)}
			put := func(key, content string) Info {
				t.Helper()
				i, err := s.Put(ctx, key, strings.NewReader(content), int64(len(content)), meta)
				if err != nil {
					t.Fatal(err)
				}
				return i
			}
			if _, err := s.Stat(ctx, "a"); !errors.Is(err, ErrNotExist) {
				t.Errorf("what is not there: %v", err)
			}
			first := put("a", "hello")
			put("dir/", "")
			put("dir/b", "")
			put("dir/sub/c", "see")

			i, err := s.Stat(ctx, "a")
			if err != nil || i.Size != 5 || i.Tag != first.Tag || i.Mode != 0o640 || !i.Time.Equal(meta.Time) || i.Dir() || !i.Known {
				t.Errorf("%+v, %v, want that of %+v", i, err, first)
			}
			for _, dir := range []string{"dir/", "dir/sub/"} {
				if i, err := s.Stat(ctx, dir); err != nil || !i.Dir() {
					t.Errorf("%s: %+v, %v", dir, i, err)
				}
			}
			list := func(dir string, recursive bool) (keys []string) {
				if err := s.List(ctx, dir, recursive, func(i Info) error { keys = append(keys, i.Key); return nil }); err != nil {
					t.Error(err)
				}
				slices.Sort(keys)
				return keys
			}
			if got := list("", false); !slices.Equal(got, []string{"a", "dir/"}) {
				t.Errorf("the root has %q", got)
			}
			if got := list("dir/", false); !slices.Equal(got, []string{"dir/b", "dir/sub/"}) {
				t.Errorf("dir has %q", got)
			}
			if got := list("", true); !slices.Contains(got, "dir/sub/c") || !slices.Contains(got, "a") {
				t.Errorf("the tree has %q", got)
			}

			p := make([]byte, 3)
			if err := s.Read(ctx, "a", first.Tag, 1, p); err != nil || string(p) != "ell" {
				t.Errorf("read %q, %v", p, err)
			}
			second := put("a", "another")
			if err := s.Read(ctx, "a", first.Tag, 1, p); !errors.Is(err, ErrChanged) {
				t.Errorf("what has changed: %v", err)
			}
			meta.Mode = 0o600
			if i, err := s.Copy(ctx, "a", "copy", meta); err != nil || i.Mode != 0o600 {
				t.Errorf("copy: %+v, %v", i, err)
			}
			if _, err := s.Copy(ctx, "a", "a", meta); err != nil {
				t.Error(err)
			}
			if i, err := s.Stat(ctx, "a"); err != nil || i.Mode != 0o600 || i.Size != second.Size {
				t.Errorf("with other metadata: %+v, %v", i, err)
			}
			for _, key := range []string{"a", "copy", "none", "dir/b", "dir/sub/c", "dir/sub/", "dir/"} {
				if err := s.Delete(ctx, key); err != nil {
					t.Errorf("delete %s: %v", key, err)
				}
			}
			if got := list("", true); len(got) != 0 {
				t.Errorf("left: %q", got)
			}
		})
	}
}

// TestParts: a large object is uploaded in parts.
func TestParts(t *testing.T) {
	s := stores(t)["bucket"]
	content := bytes.Repeat([]byte("kubelith"), (partSize+partSize/2)/8)
	i, err := s.Put(t.Context(), "large", bytes.NewReader(content), int64(len(content)), Meta{Known: true, Time: time.Now()})
	if err != nil || i.Size != int64(len(content)) {
		t.Fatalf("%+v, %v", i, err)
	}
	p := make([]byte, 16)
	if err := s.Read(t.Context(), "large", i.Tag, partSize-8, p); err != nil || string(p) != "kubelithkubelith" {
		t.Errorf("read %q, %v", p, err)
	}
}

func TestAway(t *testing.T) {
	away, err := Open(Config{Endpoint: "http://127.0.0.1:1", Bucket: "bucket"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := away.Check(ctx); err == nil || !strings.Contains(err.Error(), "store http://127.0.0.1:1, bucket bucket") || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("a store that is away: %v", err)
	}
	none, err := Open(Config{Directory: filepath.Join(t.TempDir(), "none")})
	if err != nil {
		t.Fatal(err)
	}
	if err := none.Check(ctx); err == nil || !strings.Contains(err.Error(), "create or mount it") {
		t.Errorf("a directory that is away: %v", err)
	}
	server := httptest.NewServer(&storetest.Server{})
	defer server.Close()
	other, err := Open(Config{Endpoint: server.URL, Bucket: "other"})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Check(ctx); err == nil || !strings.Contains(err.Error(), "has no bucket other: create it") {
		t.Errorf("a missing bucket: %v", err)
	}
}

func TestConfig(t *testing.T) {
	good := map[string]string{"endpoint": "https://s3.example.com\n", "bucket": "b", "access-key": "a", "secret-key": "s", "region": "r", "prefix": "p"}
	c, err := FromSecret(good)
	if want := (Config{Endpoint: "https://s3.example.com", Bucket: "b", AccessKey: "a", SecretKey: "s", Region: "r", Prefix: "p"}); err != nil || c != want {
		t.Errorf("%+v, %v", c, err)
	}
	for _, tc := range []struct {
		secret map[string]string
		want   string
	}{
		{map[string]string{"directory": "/etc"}, `the Secret has the unknown key "directory"`},
		{map[string]string{"endpoint": "https://a"}, "no endpoint or no bucket"},
		{map[string]string{"endpoint": "s3.example.com", "bucket": "b"}, "is not a URL of a store: write https://HOST[:PORT]"},
		{map[string]string{"endpoint": "https://a/b", "bucket": "b"}, "is not a URL of a store"},
	} {
		if _, err := FromSecret(tc.secret); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: %v, want %q", tc.secret, err, tc.want)
		}
	}
	for _, c := range []Config{{Directory: "relative"}, {Directory: "/a", Bucket: "b"}} {
		if _, err := Open(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}
