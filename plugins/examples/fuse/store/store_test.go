package store

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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
		out["served "+name] = served(t, Volume{Store: s, Usage: &Usage{}})
	}
	return out
}

// served returns a volume as a client without credentials has it.
func served(t *testing.T, v Volume) Store {
	t.Helper()
	server := httptest.NewServer(Handler(func(name string) (Volume, error) {
		if name != "volume" {
			return Volume{}, errors.New("there is no volume " + name)
		}
		return v, nil
	}))
	t.Cleanup(server.Close)
	return Remote("volume", func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})
}

// TestServed: a client reaches nothing outside of its volume, writes no more than its capacity, and nothing if it may
// only read.
func TestServed(t *testing.T) {
	ctx, top := t.Context(), t.TempDir()
	d, err := Open(Config{Directory: top, Prefix: "volumes/one"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(top, "secret"), []byte("another's"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := served(t, Volume{Store: d, Capacity: 100, Usage: &Usage{}})
	put := func(key string, size int) error {
		_, err := s.Put(ctx, key, strings.NewReader(strings.Repeat("x", size)), int64(size), Meta{Known: true, Mode: 0o600, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())})
		return err
	}
	for _, key := range []string{"../../secret", "..", "a/../../../secret", "/etc/passwd", "a//b", "./a"} {
		if _, err := s.Stat(ctx, key); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("stat %s: %v", key, err)
		}
		if err := put(key, 1); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("put %s: %v", key, err)
		}
		if _, err := s.Copy(ctx, "a", key, Meta{}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("copy to %s: %v", key, err)
		}
	}
	if err := put("a", 60); err != nil {
		t.Fatal(err)
	}
	// Links that another program has put into the directory.
	for name, target := range map[string]string{"file": "../../secret", "dir": "../..", "absolute": filepath.Join(top, "secret")} {
		if err := os.Symlink(target, filepath.Join(top, "volumes/one", name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"file", "dir/secret", "absolute"} {
		if err := s.Read(ctx, key, "", 0, make([]byte, 3)); err == nil {
			t.Errorf("%s is read", key)
		}
	}
	if err := put("dir/new", 1); err == nil {
		t.Error("a link to a directory outside is followed")
	}
	if err := put("b", 60); !errors.Is(err, ErrFull) {
		t.Errorf("more than the capacity: %v", err)
	}
	if _, err := s.Copy(ctx, "a", "b", Meta{}); !errors.Is(err, ErrFull) {
		t.Errorf("copy more than the capacity: %v", err)
	}
	if err := put("a", 90); err != nil {
		t.Errorf("a file that replaces another: %v", err)
	}
	if err := s.Delete(ctx, "a"); err != nil {
		t.Error(err)
	}
	if err := put("b", 60); err != nil {
		t.Errorf("after the deletion: %v", err)
	}
	large := served(t, Volume{Store: d, Capacity: 1 << 20, Usage: &Usage{}})
	if _, err := large.Put(ctx, "c", bytes.NewReader(make([]byte, 8<<20)), 8<<20, Meta{}); !errors.Is(err, ErrFull) {
		t.Errorf("much more than the capacity: %v", err)
	}
	readOnly := served(t, Volume{Store: d, ReadOnly: true, Usage: &Usage{}})
	_, err = readOnly.Put(ctx, "c", strings.NewReader("x"), 1, Meta{})
	if err2 := readOnly.Delete(ctx, "b"); !errors.Is(err, syscall.EROFS) || !errors.Is(err2, syscall.EROFS) {
		t.Errorf("a read-only volume: %v, %v", err, err2)
	}
	if i, err := readOnly.Stat(ctx, "b"); err != nil || i.Size != 60 || i.Key != "b" {
		t.Errorf("%+v, %v", i, err)
	}
}

// TestServedAgain: requests wait for a server that is being replaced.
func TestServedAgain(t *testing.T) {
	d, err := Open(Config{Directory: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	tries := 0
	server := httptest.NewServer(Handler(func(string) (Volume, error) { return Volume{Store: d}, nil }))
	defer server.Close()
	s := Remote("volume", func(ctx context.Context) (net.Conn, error) {
		if tries++; tries < 3 {
			return nil, syscall.ECONNREFUSED
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})
	meta := Meta{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	if i, err := s.Put(t.Context(), "a", strings.NewReader("content"), 7, meta); err != nil || i.Size != 7 {
		t.Errorf("%+v, %v", i, err)
	}
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
	for _, name := range []string{"bucket", "served bucket"} {
		t.Run(name, func(t *testing.T) { testParts(t, stores(t)[name]) })
	}
}

func testParts(t *testing.T, s Store) {
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
