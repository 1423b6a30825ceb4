package join

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus/hooks/test"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/jointoken"
)

// A machine joins with a token; later it needs none, and no server either.
func TestJoin(t *testing.T) {
	a := newAPI(t, newAuthority(t))
	o := a.options(t)
	if IsAgent(o.DataDir) {
		t.Fatal("joined before it has")
	}
	first := joined(t, o)
	if !IsAgent(o.DataDir) {
		t.Fatal("not joined")
	}
	for name, mode := range map[string]os.FileMode{"agent/identity.key": 0o600, "agent/pki": 0o700 | os.ModeDir, "agent/cluster.json": 0o600} {
		if info, err := os.Stat(filepath.Join(o.DataDir, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v %v, want %v", name, info, err, mode)
		}
	}
	// The server knows the machine by the key of its request.
	a.mu.Lock()
	csrs := slices.Collect(maps.Values(a.csrs))
	a.mu.Unlock()
	for _, csr := range csrs {
		block, _ := pem.Decode(csr.Spec.Request)
		request, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if known, want := Machine(o.DataDir), fmt.Sprintf("%x", sha256.Sum256(request.RawSubjectPublicKeyInfo)); len(known) != 63 || !strings.HasPrefix(want, known) {
			t.Errorf("the machine is %q, to the server %q", known, want)
		}
	}
	if known := Machine(t.TempDir()); known != "" {
		t.Errorf("a machine without a key is %q", known)
	}
	client, err := kubernetes.NewForConfig(first.Config("test"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), "settings", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if last := a.requests()[len(a.requests())-1]; !strings.HasPrefix(last, "system:node:one GET ") {
		t.Errorf("the request was that of %q", last)
	}

	// The newer settings count, and are stored.
	a.mu.Lock()
	a.settings = `{"two": 2}`
	a.mu.Unlock()
	o.Token = ""
	c, err := Find(t.Context(), o)
	if err != nil || string(c.Settings()) != `{"two": 2}` {
		t.Fatalf("settings %s, error %v", c.Settings(), err)
	}
	second, err := c.Join(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	second.way.close()

	a.CloseClientConnections()
	a.Close()
	c, err = Find(t.Context(), o)
	if err != nil || string(c.Settings()) != `{"two": 2}` {
		t.Fatalf("without the server: settings %s, error %v", c.Settings(), err)
	}
	third, err := c.Join(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	third.way.close()
}

// Every refused join reports why in one line, before anything is written, and before the token's secret is sent to a
// server that is not the token's.
func TestRefused(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	plain := http.Server{Handler: http.NotFoundHandler()}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go plain.Serve(listener)
	defer plain.Close()

	other := newAuthority(t)
	refusalPaths := map[string]string{
		"another CA": "/kubelith/refused/ca", "clock behind": "/kubelith/refused/clock", "clock ahead": "/kubelith/refused/clock",
		"agent is newer": "/kubelith/refused/version",
	}
	for name, test := range map[string]struct {
		change func(a *api, o *Options)
		want   string
		sent   bool // the secret: only to a server with the token's CA
	}{
		"no token":        {func(a *api, o *Options) { o.Token = "" }, "a token is needed to join", false},
		"not a token":     {func(a *api, o *Options) { o.Token = "abc.def" }, "not a kubelith token", false},
		"a newer token":   {func(a *api, o *Options) { o.Token = "kl2" + o.Token[3:] }, "newer kubelith", false},
		"no server there": {func(a *api, o *Options) { o.Server = "https://" + closed.Addr().String() }, "does not answer (dial tcp", false},
		"no TLS there":    {func(a *api, o *Options) { o.Server = "https://" + listener.Addr().String() }, "does not answer", false},
		"another CA": {func(a *api, o *Options) {
			a.token.CAHash = jointoken.SPKIHash(other.cert)
			o.Token = a.token.String()
		}, "the server's CA is not the token's", false},
		"unknown token":        {func(a *api, o *Options) { a.token.ID = "other1" }, "does not know token abc123", true},
		"wrong secret":         {func(a *api, o *Options) { o.Token = o.Token[:len(o.Token)-1] + "0" }, "secret of token abc123 is wrong", true},
		"signed, not for this": {func(a *api, o *Options) { a.refuse = true }, "refuses token abc123: it has just expired, or was created without the usage authentication", true},
		"CA in no kubeconfig":  {func(a *api, o *Options) { a.info = func(d map[string]string) { d["kubeconfig"] = "\t" } }, "cluster-info cannot be decoded", false},
		"clock behind":         {func(a *api, o *Options) { a.skew = time.Hour }, "the clock of this machine is 1h0m0s behind the server's: set it", false},
		"clock ahead":          {func(a *api, o *Options) { a.skew = -6 * time.Minute }, "the clock of this machine is 6m0s ahead of the server's: set it", false},
		"no anonymous reads":   {func(a *api, o *Options) { a.infoCode = http.StatusForbidden }, "refuses anonymous reads of cluster-info (HTTP 403)", false},
		"no cluster-info":      {func(a *api, o *Options) { a.infoCode = http.StatusNotFound }, "publishes no cluster-info", false},
		"not ready":            {func(a *api, o *Options) { a.infoCode = http.StatusServiceUnavailable }, "is not ready (HTTP 503)", false},
		"agent is newer":       {func(a *api, o *Options) { o.Version = "v1.38.0" }, "this kubelith has Kubernetes v1.38.0, but the server has v1.37.1: upgrade the server first", true},
		"no settings":          {func(a *api, o *Options) { o.Settings.Key = "x" }, "lack x", true},
		"name taken":           {func(a *api, o *Options) { a.deny = "the name one belongs to another machine" }, "refuses this node: the name one belongs to another machine", true},
		"a server's directory": {func(a *api, o *Options) { mkdir(t, o.DataDir, "server/db/member") }, "has a server's data", false},
		"signed by another CA": {func(a *api, o *Options) {
			a.ca = other
			a.token.CAHash = jointoken.SPKIHash(other.cert)
			o.Token = a.token.String()
		}, "certificate signed by unknown authority", false},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, newAuthority(t))
			o := a.options(t)
			test.change(a, &o)
			given, _ := jointoken.Parse(o.Token) // wrong in some
			before := files(t, o.DataDir)
			c, err := Find(t.Context(), o)
			if now := files(t, o.DataDir); len(now) != len(before) {
				t.Errorf("Find wrote %v", now)
			}
			if err == nil {
				_, err = c.Join(t.Context(), nil)
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, test.want)
			}
			if c != nil && c.way != nil {
				c.way.close()
			}
			if _, err := os.Stat(filepath.Join(o.DataDir, "agent")); err == nil {
				t.Errorf("left behind: %v", files(t, o.DataDir))
			}
			sent := slices.ContainsFunc(a.requests(), func(r string) bool { return strings.HasPrefix(r, given.Bearer()+" ") })
			if sent != test.sent {
				t.Errorf("secret sent: %v, want %v: %q", sent, test.sent, a.requests())
			}
			// The server gets the reason, and nothing else, where it could not know of the refusal.
			reported := slices.DeleteFunc(a.requests(), func(r string) bool { return !strings.Contains(r, "/kubelith/") })
			if want := refusalPaths[name]; want == "" && len(reported) > 0 || want != "" && !slices.Equal(reported, []string{" GET " + want}) {
				t.Errorf("the server received %q, want %q", reported, want)
			}
		})
	}
}

func mkdir(t *testing.T, elements ...string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(elements...), 0o700); err != nil {
		t.Fatal(err)
	}
}

// A token that the server takes is good, whatever is signed: the signature comes a moment after the token, and not to
// all.
func TestJoinUnsigned(t *testing.T) {
	a := newAPI(t, newAuthority(t))
	a.info = func(d map[string]string) { delete(d, "jws-kubeconfig-abc123") }
	joined(t, a.options(t))
}

// Proxies of the environment are ignored, whichever server gets the request.
func TestNoProxy(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	t.Setenv("https_proxy", "http://127.0.0.1:1")
	joined(t, newAPI(t, newAuthority(t)).options(t))
}

// What a user put into the directory before stays when the join fails.
func TestRefusedKeepsOthers(t *testing.T) {
	a := newAPI(t, newAuthority(t))
	o := a.options(t)
	mkdir(t, o.DataDir, "agent/images")
	archive := filepath.Join(o.DataDir, "agent/images/a.tar")
	if err := os.WriteFile(archive, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.deny = "no"
	c, err := Find(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.way.close()
	if _, err := c.Join(t.Context(), nil); err == nil {
		t.Fatal("joined")
	}
	if got := files(t, o.DataDir); len(got) != 1 || got["agent/images/a.tar"] != "x" {
		t.Errorf("files %v", got)
	}
}

// A directory belongs to one cluster and one name; an expired certificate takes a token, and keeps the machine's key.
func TestLaterStart(t *testing.T) {
	ca := newAuthority(t)
	a := newAPI(t, ca)
	o := a.options(t)
	joined(t, o)
	key := files(t, o.DataDir)["agent/identity.key"]

	refused := func(name string, change func(*Options), want string) {
		t.Helper()
		wrong := o
		change(&wrong)
		if _, err := Find(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %q", name, err, want)
		}
	}
	other := newAPI(t, newAuthority(t))
	refused("another cluster's token", func(o *Options) { o.Token = other.token.String() }, "belongs to a node of another cluster than the token")
	refused("another name", func(o *Options) { o.NodeName = "two" }, "joined as one: use --node-name one")
	refused("another cluster's server", func(o *Options) { o.Token, o.Server = "", other.URL }, "is not in the cluster that this machine joined")
	if len(other.requests()) > 0 {
		t.Errorf("the other server was asked: %q", other.requests())
	}

	expired := store{o.DataDir}
	pair := ca.pair(t, subject("one"), time.Now().Add(-time.Minute))
	writePair(t, expired.clientCert(), pair)
	refused("expired", func(o *Options) { o.Token = "" }, "the node's certificate expired at")
	joined(t, o)
	if now := files(t, o.DataDir)["agent/identity.key"]; now != key {
		t.Error("the machine has another key")
	}
	m, err := expired.load()
	if err != nil || time.Now().After(m.cert.Leaf.NotAfter) {
		t.Errorf("after joining again: %v", err)
	}

	if err := os.WriteFile(expired.ca(), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused("damaged", func(*Options) {}, "is damaged")
}

// The server may have got another address: its name in the certificate is the same everywhere.
func TestAnotherAddress(t *testing.T) {
	ca := newAuthority(t)
	old := newAPI(t, ca)
	o := old.options(t)
	joined(t, o)
	old.CloseClientConnections()
	old.Close()
	moved := newAPI(t, ca)
	moved.settings = `{"moved": true}`
	o.Server, o.Token = moved.URL, ""
	c, err := Find(t.Context(), o)
	if err != nil || string(c.Settings()) != moved.settings {
		t.Fatalf("settings %s, error %v", c.Settings(), err)
	}
	c.way.close()
}

// A stop during the join ends it, and leaves nothing.
func TestJoinCancelled(t *testing.T) {
	a := newAPI(t, newAuthority(t))
	o := a.options(t)
	c, err := Find(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.way.close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Join(ctx, nil); err == nil {
		t.Fatal("joined")
	}
	if got := files(t, o.DataDir); len(got) > 0 {
		t.Errorf("left behind: %v", got)
	}
}

// A machine that stops waiting for its certificate keeps the key, and nothing else: the server may have reserved the
// name for it.
func TestJoinInterrupted(t *testing.T) {
	a := newAPI(t, newAuthority(t))
	o := a.options(t)
	c, err := Find(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.way.close()
	a.silent = true
	ctx, cancel := context.WithCancel(t.Context())
	joined := make(chan error, 1)
	go func() {
		_, err := c.Join(ctx, nil)
		joined <- err
	}()
	waitFor(t, "the agent to request its certificate", func() bool {
		return slices.Contains(a.requests(), a.token.Bearer()+" GET /apis/certificates.k8s.io/v1/certificatesigningrequests")
	})
	cancel()
	if err := <-joined; err == nil {
		t.Fatal("joined")
	}
	left := files(t, o.DataDir)
	if len(left) != 1 || left["agent/identity.key"] == "" {
		t.Fatalf("files %v", left)
	}
	a.mu.Lock()
	a.silent = false
	a.mu.Unlock()
	again, err := c.Join(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	again.way.close()
	if key := files(t, o.DataDir)["agent/identity.key"]; key != left["agent/identity.key"] {
		t.Error("the second try has another key")
	}
}

func TestNewerMinor(t *testing.T) {
	for _, c := range []struct {
		agent, server string
		want          bool
	}{{"v1.37.1", "v1.37.0", false}, {"v1.38.0", "v1.37.9", true}, {"v1.36.0", "v1.37.0", false}, {"v2.0.0", "v1.37.0", true}, {"v1.37.1-kubelith.1", "v1.37.1+k", false}} {
		if got, err := newerMinor(c.agent, c.server); got != c.want || err != nil {
			t.Errorf("%s with a server %s: %v %v", c.agent, c.server, got, err)
		}
	}
	if _, err := newerMinor("v1.37.1", "nonsense"); err == nil {
		t.Error("a version that cannot be read is no error")
	}
}

// A node that was removed from the cluster joins again with a token, as the machine that it is. Without one it goes on
// with what it knows, as when the server is away, and says what to do.
func TestRemoved(t *testing.T) {
	ca := newAuthority(t)
	a := newAPI(t, ca)
	o := a.options(t)
	first := joined(t, o)
	key := files(t, o.DataDir)["agent/identity.key"]
	known, err := store{o.DataDir}.load()
	if err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	a.removed = known.cert.Leaf.SerialNumber
	a.mu.Unlock()

	client, err := kubernetes.NewForConfig(first.Config("test"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Discovery().ServerVersion(); !apierrors.IsUnauthorized(err) || !first.way.refused.Load() {
		t.Errorf("while it runs: %v, noticed: %v", err, first.way.refused.Load())
	}

	log, hook := test.NewNullLogger()
	without := o
	without.Token, without.Log = "", log
	c, err := Find(t.Context(), without)
	if err != nil || c.token != nil || string(c.Settings()) != a.settings {
		t.Fatalf("without a token: %v, settings %s", err, c.Settings())
	}
	c.way.close()
	if line := hook.LastEntry(); line == nil || line.Message != shutOut {
		t.Errorf("logged %v", line)
	}

	again := joined(t, o)
	if client, err = kubernetes.NewForConfig(again.Config("test")); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Discovery().ServerVersion(); err != nil || again.way.refused.Load() {
		t.Errorf("when it has joined again: %v", err)
	}
	if files(t, o.DataDir)["agent/identity.key"] != key {
		t.Error("it is another machine")
	}
}
