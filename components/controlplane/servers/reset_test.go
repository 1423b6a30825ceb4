package servers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/etcdserver"
	etcdmembership "go.etcd.io/etcd/server/v3/etcdserver/api/membership"

	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/controlplane/etcd"
)

// etcdMember returns a member as etcd stores it.
func etcdMember(name string, urls ...string) *etcdmembership.Member {
	return &etcdmembership.Member{
		RaftAttributes: etcdmembership.RaftAttributes{PeerURLs: urls},
		Attributes:     etcdmembership.Attributes{Name: name},
	}
}

// storeMembers writes members to the database of an etcd that does not run.
func storeMembers(t *testing.T, dataDir string, members ...*etcdmembership.Member) {
	t.Helper()
	file := filepath.Join(dataDir, "member", "snap", "db")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(file, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		bucket, err := tx.CreateBucketIfNotExists([]byte(membersBucket))
		if err != nil {
			return err
		}
		for i, m := range members {
			text, err := json.Marshal(m)
			if err != nil {
				return err
			}
			if err := bucket.Put([]byte{byte(i)}, text); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestOtherMembers: the others are those that etcd has stored, a witness and one that joins included.
func TestOtherMembers(t *testing.T) {
	dir := t.TempDir()
	storeMembers(t, dir, etcdMember("a", "https://192.0.2.1:2380"), etcdMember("b", "https://192.0.2.2:2380"),
		etcdMember("", "https://192.0.2.3:2380"), etcdMember("d"))
	all, err := members(dir)
	var urls []string
	for _, m := range others(all, "a") {
		urls = append(urls, m.PeerURLs[0])
	}
	if err != nil || !slices.Equal(urls, []string{"https://192.0.2.2:2380", "https://192.0.2.3:2380"}) {
		t.Errorf("%q, %v", urls, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "member", "snap", "db"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if others, err := members(dir); err == nil {
		t.Errorf("damaged data: %v", others)
	}
	if others, err := members(t.TempDir()); err == nil {
		t.Errorf("no data: %v", others)
	}
}

// TestHasVote: what a server that still joins has is not made a cluster.
func TestHasVote(t *testing.T) {
	learner := func(name string) *etcdmembership.Member {
		m := etcdMember(name)
		m.IsLearner = true
		return m
	}
	for name, c := range map[string]struct {
		members []*etcdmembership.Member
		want    bool
	}{
		"a voter":                        {[]*etcdmembership.Member{etcdMember("b"), etcdMember("a")}, true},
		"a voter, and one that joins":    {[]*etcdmembership.Member{learner(""), etcdMember("a")}, true},
		"a learner":                      {[]*etcdmembership.Member{etcdMember("b"), learner("a")}, false},
		"a learner that has not started": {[]*etcdmembership.Member{etcdMember("b"), learner("")}, false},
		"unknown":                        {nil, true},
	} {
		if got := hasVote(c.members, "a"); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestWithMajority: one answer is enough, and the others do not delay it.
func TestWithMajority(t *testing.T) {
	members := []*etcdmembership.Member{etcdMember("b", "hangs"), etcdMember("c", "answers"), etcdMember("d", "refuses")}
	ask := func(ctx context.Context, url string) error {
		switch url {
		case "answers":
			return nil
		case "hangs":
			<-ctx.Done()
		}
		return errors.New(url)
	}
	if m := withMajority(t.Context(), members, ask); m == nil || m.Name != "c" {
		t.Errorf("%v answers", m)
	}
	for what, members := range map[string][]*etcdmembership.Member{"one that refuses": members[2:], "none": nil} {
		if m := withMajority(t.Context(), members, ask); m != nil {
			t.Errorf("%s: %s answers", what, m.Name)
		}
	}
}

// TestRefuseIfAlive: a reset is refused in one line while another member answers with a majority, and only then. The
// question is asked, and answered, with certificates of the servers' own CA.
func TestRefuseIfAlive(t *testing.T) {
	identity := func() (etcd.Peer, *tls.Config) {
		bundle, err := pki.Ensure(pki.Options{
			Dir: filepath.Join(t.TempDir(), "tls"), NodeName: "one", NodeIPs: []net.IP{net.IPv4(127, 0, 0, 1)}, ClusterDomain: "cluster.local",
		})
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.LoadX509KeyPair(bundle.Peer.Cert, bundle.Peer.Key)
		if err != nil {
			t.Fatal(err)
		}
		ca, err := os.ReadFile(bundle.PeerCA.Cert)
		if err != nil {
			t.Fatal(err)
		}
		trusted := x509.NewCertPool()
		trusted.AppendCertsFromPEM(ca)
		return etcd.Peer{Cert: bundle.Peer.Cert, Key: bundle.Peer.Key, CA: bundle.PeerCA.Cert},
			&tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: trusted}
	}
	ours, serving := identity()
	strangers, _ := identity()
	for what, c := range map[string]struct {
		status  int
		peer    etcd.Peer
		refused bool
	}{
		"a majority":               {http.StatusOK, ours, true},
		"no majority":              {http.StatusInternalServerError, ours, false},
		"members of other servers": {http.StatusOK, strangers, false},
	} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != etcdserver.DowngradeEnabledPath || r.Method != http.MethodGet {
				t.Errorf("it asks %s %s", r.Method, r.URL)
			}
			w.WriteHeader(c.status)
		}))
		server.TLS = serving
		server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that fail
		server.StartTLS()
		other := []*etcdmembership.Member{etcdMember("other", server.URL)}
		err := refuseIfAlive(t.Context(), c.peer, other)
		want := "server other (" + server.URL + ") answers and has a majority: start this server without --cluster-reset"
		if (err != nil) != c.refused || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %v", what, err)
		}
		server.Close()
		if err := refuseIfAlive(t.Context(), c.peer, other); err != nil {
			t.Errorf("%s, ended: %v", what, err)
		}
	}
}
