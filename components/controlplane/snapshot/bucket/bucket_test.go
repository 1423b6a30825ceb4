package bucket

import (
	"bytes"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/components/controlplane/snapshot/bucket/buckettest"
)

// serve returns a store with TLS, and options that reach it.
func serve(t *testing.T) (*buckettest.Server, Options) {
	t.Helper()
	s, err := buckettest.New()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewTLSServer(s)
	t.Cleanup(server.Close)
	ca := file(t, "ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})), 0o644)
	keys := file(t, "credentials", "[default]\naws_access_key_id = "+buckettest.AccessKey+"\naws_secret_access_key = "+buckettest.SecretKey+"\n", 0o600)
	return s, Options{Endpoint: server.Listener.Addr().String(), Bucket: buckettest.Bucket, Folder: "/a/b/", Region: "us-east-1",
		CredentialsFile: keys, CAFile: ca, Lookup: "auto", Timeout: time.Minute}
}

func file(t *testing.T, name, content string, mode fs.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, o Options) *Bucket {
	t.Helper()
	b, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// Files of one part and of several, which the store gets whole.
func TestFiles(t *testing.T) {
	s, o := serve(t)
	b := open(t, o)
	for name, size := range map[string]int{"small.x": 10, "large.x": 40 << 20} {
		content := make([]byte, size)
		rand.Read(content)
		var told int64
		if err := b.Put(t.Context(), name, bytes.NewReader(content), int64(size), func(done int64) { told = done }); err != nil {
			t.Fatal(err)
		}
		if told != int64(size) {
			t.Errorf("%s: progress reported %d bytes of %d", name, told, size)
		}
		r, err := b.Get(t.Context(), name, 0)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if r.Close(); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: read %d bytes of %d, %v", name, len(got), size, err)
		}
		if n, err := b.Size(t.Context(), name); n != int64(size) || err != nil {
			t.Errorf("%s: %d, %v", name, n, err)
		}
		r, err = b.Get(t.Context(), name, 20)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, content[:min(20, size)]) {
			t.Errorf("%s: the first bytes: %d, %v", name, len(got), err)
		}
		r.Close()
	}
	other := o
	other.Folder = ""
	if err := open(t, other).Put(t.Context(), "other.x", strings.NewReader("x"), 1, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Put(t.Context(), "another.y", strings.NewReader("x"), 1, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := b.List(t.Context(), ".x"); err != nil || !slices.Equal(got, []Object{{"large.x", 40 << 20}, {"small.x", 10}}) {
		t.Errorf("%v, %v", got, err)
	}
	for range 2 {
		if err := b.Delete(t.Context(), "large.x"); err != nil {
			t.Error(err)
		}
	}
	if keys, err := s.Keys(); err != nil || !slices.Equal(keys, []string{"a/b/another.y", "a/b/small.x", "other.x"}) {
		t.Errorf("%q, %v", keys, err)
	}
	if _, err := b.Size(t.Context(), "large.x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("gone: %v", err)
	}
	r, err := b.Get(t.Context(), "large.x", 0)
	if err == nil {
		_, err = io.ReadAll(r)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("gone: %v", err)
	}
}

// Each error is one line that names the store and not the keys.
func TestRefusals(t *testing.T) {
	s, o := serve(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	wrong := file(t, "wrong", "[default]\naws_access_key_id = "+buckettest.AccessKey+"\naws_secret_access_key = wr0ng-s3cret\n", 0o600)
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no bucket":         {func(o *Options) { o.Bucket = "others" }, "has no bucket others: create it"},
		"wrong keys":        {func(o *Options) { o.CredentialsFile = wrong }, "refuses the keys of the account (SignatureDoesNotMatch)"},
		"unknown keys":      {func(o *Options) { o.AccessKey, o.SecretKey = "AKIAOTHER", "n0-s3cret" }, "refuses the keys of the account (InvalidAccessKeyId)"},
		"unknown CA":        {func(o *Options) { o.CAFile = "" }, "certificate signed by unknown authority"},
		"not TLS":           {func(o *Options) { o.Insecure = true }, "store " + o.Endpoint},
		"no listener":       {func(o *Options) { o.Endpoint = "127.0.0.1:1" }, "connection refused"},
		"silent":            {func(o *Options) { o.Endpoint, o.Timeout = silent.Addr().String(), time.Second }, "does not answer"},
		"no credentials":    {func(o *Options) { o.CredentialsFile = "" }, "has no keys: set --snapshot-s3-credentials-file"},
		"no such file":      {func(o *Options) { o.CredentialsFile += "x" }, "does not exist"},
		"readable file":     {func(o *Options) { o.CredentialsFile = file(t, "c", "[default]\n", 0o644) }, "can be read by others: chmod 600 it"},
		"not credentials":   {func(o *Options) { o.CredentialsFile = file(t, "c", "AKIATEST s3cret\n", 0o600) }, "has no keys: write [default]"},
		"no such CA":        {func(o *Options) { o.CAFile += "x" }, "CA file of the store"},
		"not a certificate": {func(o *Options) { o.CAFile = file(t, "ca", "x", 0o644) }, "has no certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			o := o
			c.change(&o)
			b, err := Open(o)
			if err == nil {
				defer b.Close()
				err = b.Put(t.Context(), "x", strings.NewReader("x"), 1, nil)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
	if keys, err := s.Keys(); err != nil || len(keys) != 0 {
		t.Errorf("the store has %q, %v", keys, err)
	}
	o.SkipTLSVerify, o.CAFile = true, ""
	if err := open(t, o).Put(t.Context(), "x", strings.NewReader("x"), 1, nil); err != nil {
		t.Errorf("any certificate: %v", err)
	}
}

// Without TLS the content is signed, in parts.
func TestInsecure(t *testing.T) {
	s, err := buckettest.New()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s)
	defer server.Close()
	b := open(t, Options{Endpoint: server.Listener.Addr().String(), Bucket: buckettest.Bucket, Region: "us-east-1", AccessKey: buckettest.AccessKey,
		SecretKey: buckettest.SecretKey, Insecure: true, Lookup: "path", Timeout: time.Minute})
	content := strings.Repeat("0123456789", 100_000)
	if err := b.Put(t.Context(), "x", strings.NewReader(content), int64(len(content)), nil); err != nil {
		t.Fatal(err)
	}
	r, err := b.Get(t.Context(), "x", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || string(got) != content {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
}

// A store that stays silent ends a request; one that is slow, and goes on, does not.
func TestSlow(t *testing.T) {
	s, o := serve(t)
	o.Timeout = 2 * time.Second
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	go func() { // carries 4 KiB every 50 ms in each direction: 256 KiB take longer than the timeout
		for {
			in, err := proxy.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", o.Endpoint)
			if err != nil {
				in.Close()
				return
			}
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					defer pair[1].Close()
					for {
						if _, err := io.CopyN(pair[1], pair[0], 4<<10); err != nil {
							return
						}
						time.Sleep(50 * time.Millisecond)
					}
				}()
			}
		}
	}()
	slow := o
	slow.Endpoint = proxy.Addr().String()
	content := make([]byte, 256<<10)
	rand.Read(content)
	b := open(t, o)
	if err := b.Put(t.Context(), "x", bytes.NewReader(content), int64(len(content)), nil); err != nil {
		t.Fatal(err)
	}
	r, err := open(t, slow).Get(t.Context(), "x", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	began := time.Now()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, content) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
	t.Logf("in %s, with a timeout of %s", time.Since(began).Round(time.Millisecond), o.Timeout)
	if s.Requests() == 0 {
		t.Error("nothing was asked")
	}
}
