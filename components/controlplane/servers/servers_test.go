package servers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"

	"kubelith.io/kubelith/base/jointoken"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/sealed"
	"kubelith.io/kubelith/components/controlplane/etcd"
)

// member is etcd with these members; it answers no requests.
type member []etcd.Member

func (m member) Members() []etcd.Member                       { return m }
func (m member) Open() bool                                   { return len(m) > 1 }
func (m member) OpenToPeers(context.Context, etcd.Peer) error { return nil }
func (m member) Removed() bool                                { return false }

func server(t *testing.T, members member, objects ...runtime.Object) *Server {
	log := logrus.New()
	log.SetOutput(t.Output())
	return &Server{
		opts: Options{NodeName: "a", Etcd: members, Kubernetes: "v1.37.1", DataDir: t.TempDir(), Log: log,
			Removed: func(name string, joined time.Time) bool { return name == "gone" }},
		client: fake.NewClientset(objects...), missing: map[uint64]time.Time{}, probe: http.Client{Timeout: 20 * time.Second, Transport: http.DefaultTransport},
		orphanAfter: orphanAfter, absentFor: absentAfter,
	}
}

// TestLook: a server that does not answer is a warning, once; one that has not begun yet is none.
func TestLook(t *testing.T) {
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	var text bytes.Buffer
	log := logrus.New()
	log.SetOutput(&text)
	log.SetFormatter(&logrus.TextFormatter{DisableTimestamp: true, DisableQuote: true})
	s := server(t, nil)
	s.opts.Log = log
	for _, step := range []struct{ name, url, want string }{
		{"", down.URL, "level=info msg=joining server (" + down.URL + ") does not answer yet: "},
		{"", down.URL, ""},
		{"b", up.URL, "level=info msg=server b (" + up.URL + ") answers again, after "},
		{"b", down.URL, "level=warning msg=server b (" + down.URL + ") does not answer: "},
		{"b", down.URL, ""},
	} {
		text.Reset()
		s.look(t.Context(), []etcd.Member{{ID: 1, Self: true}, {ID: 2, Name: step.name, URL: step.url}})
		if got := text.String(); !strings.HasPrefix(got, step.want) || step.want == "" && got != "" {
			t.Errorf("%s at %s: the log has %q, want %q", step.name, step.url, got, step.want)
		}
	}
}

func TestCheck(t *testing.T) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	good := request{Name: "b", PeerURL: "https://192.0.2.2:2380", Recipient: identity.Recipient().String(), Kubernetes: "v1.37.1"}
	s := server(t, nil)
	for name, tc := range map[string]struct {
		change func(*request)
		want   string // refusal; empty: none
	}{
		"good":                    {func(*request) {}, ""},
		"IPv6":                    {func(r *request) { r.PeerURL = "https://[2001:db8::2]:2380" }, ""},
		"one release older":       {func(r *request) { r.Kubernetes = "v1.36.9" }, ""},
		"another patch":           {func(r *request) { r.Kubernetes = "v1.37.7" }, ""},
		"a name that is none":     {func(r *request) { r.Name = "A_b" }, `"A_b" cannot be a server's name`},
		"no address":              {func(r *request) { r.PeerURL = "" }, "is not the address of a server"},
		"a path":                  {func(r *request) { r.PeerURL += "/x" }, "is not the address of a server"},
		"loopback":                {func(r *request) { r.PeerURL = "https://127.0.0.1:2380" }, "cannot reach a server at 127.0.0.1"},
		"two releases older":      {func(r *request) { r.Kubernetes = "v1.35.0" }, "install the cluster's release here"},
		"a newer release":         {func(r *request) { r.Kubernetes = "v1.38.0" }, "newer than the cluster's"},
		"no version":              {func(r *request) { r.Kubernetes = "x" }, "is not a version"},
		"no key":                  {func(r *request) { r.Recipient = "age1x" }, "key for the answer"},
		"a key of another scheme": {func(r *request) { r.Recipient = "ssh-ed25519 AAAA" }, "key for the answer"},
	} {
		r := good
		tc.change(&r)
		if _, err := s.check(r); !refusedWith(err, tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// refusedWith reports whether the error is a Refusal with that text; without a text whether there is none.
func refusedWith(err error, text string) bool {
	var no sealed.Refusal
	return text == "" && err == nil || text != "" && errors.As(err, &no) && strings.Contains(err.Error(), text) && !strings.Contains(err.Error(), "\n")
}

// TestEntitled: a machine with a token for servers joins once; a former server comes back unless it was removed.
func TestEntitled(t *testing.T) {
	cs := fake.NewClientset()
	forServer, err := jointoken.Create(t.Context(), cs, strings.Repeat("0", 64), jointoken.Spec{Usages: []string{jointoken.UsageServer}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	s := server(t, nil)
	s.client = cs
	bootstrap := func(id, group string) user.Info {
		return &user.DefaultInfo{Name: "system:bootstrap:" + id, Groups: []string{group}}
	}
	known := func(name string) user.Info {
		return &user.DefaultInfo{Name: names.ServerUserPrefix + name, Groups: []string{names.Servers}}
	}
	first, second := request{Name: "b", Recipient: "age1x"}, request{Name: "c", Recipient: "age1y"}
	for _, tc := range []struct {
		name string
		who  user.Info
		r    request
		want string
	}{
		{"an agent's token", bootstrap(forServer.ID, names.JoiningAgents), first, "create a token with kubelith token create --usages server"},
		{"an administrator", &user.DefaultInfo{Name: "kubelith-admin", Groups: []string{names.Admins, names.JoiningServers}}, first, "cannot become a server"},
		{"a server's token", bootstrap(forServer.ID, names.JoiningServers), first, ""},
		{"the same machine again", bootstrap(forServer.ID, names.JoiningServers), first, ""},
		{"another machine", bootstrap(forServer.ID, names.JoiningServers), second, "is valid for one machine only"},
		{"a token that was deleted", bootstrap("abcdef", names.JoiningServers), first, "was deleted"},
		{"a server of the cluster", known("b"), first, ""},
		{"a server under another's name", known("c"), first, "cannot join as b"},
		{"a server that was removed", known("gone"), request{Name: "gone"}, "was removed from the cluster: start it with --server and --token-file"},
	} {
		if err := s.entitled(t.Context(), tc.who, tc.r); !refusedWith(err, tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}

func TestCheckNode(t *testing.T) {
	s := server(t, nil, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "agent"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "server", Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}}})
	for name, want := range map[string]string{"agent": "the cluster has a node agent, which is not a server", "server": "", "new": ""} {
		if err := s.checkNode(t.Context(), request{Name: name}); !refusedWith(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, want := range map[string]string{"agent": "a witness is not a node", "server": "a witness is not a node", "new": ""} {
		if err := s.checkNode(t.Context(), request{Name: name, Witness: true}); !refusedWith(err, want) {
			t.Errorf("witness %s: %v", name, err)
		}
	}
}

// TestKeysOfWitness: a witness gets the CA of etcd's members and no other key, and refuses others that an older server
// would send.
func TestKeysOfWitness(t *testing.T) {
	s := server(t, nil)
	s.opts.TLSDir, s.opts.EncryptionConfig = t.TempDir(), filepath.Join(t.TempDir(), "encryption.yaml")
	for _, name := range []string{"cluster-ca.crt", "cluster-ca.key", "kubelet-ca.crt", "kubelet-ca.key", "front-proxy-ca.crt", "front-proxy-ca.key",
		"peer-ca.crt", "peer-ca.key", "kubelet-trust.crt", "service-account.key"} {
		if err := os.WriteFile(filepath.Join(s.opts.TLSDir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(s.opts.EncryptionConfig, []byte("secret-of-secrets"), 0o600); err != nil {
		t.Fatal(err)
	}
	var all, few bundle
	if err := errors.Join(s.giveKeys(&all, request{}), s.giveKeys(&few, request{Witness: true})); err != nil {
		t.Fatal(err)
	}
	if len(all.Keys) != 10 || string(all.Encryption) != "secret-of-secrets" {
		t.Errorf("a server gets %v", all)
	}
	if len(few.Keys) != 2 || few.Keys["peer-ca.crt"] == nil || few.Keys["peer-ca.key"] == nil || few.Encryption != nil {
		t.Errorf("a witness gets %v", few)
	}
	dir := t.TempDir()
	n := &Newcomer{DataDir: dir, TLSDir: filepath.Join(dir, "tls"), EncryptionConfig: filepath.Join(dir, "cred", "encryption.yaml"), Witness: true}
	if err := n.placeKeys(&all); err == nil || !strings.Contains(err.Error(), "unknown file") || !absent(n.TLSDir) {
		t.Errorf("with all keys: %v", err)
	}
	if err := n.placeKeys(&few); err != nil || !absent(n.EncryptionConfig) {
		t.Errorf("with its own keys: %v", err)
	}
}

func absent(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}

// TestWitnessIsNoServer: it is not among the names of servers, does not keep the last server from being the only one,
// and is removed without a record.
func TestWitnessIsNoServer(t *testing.T) {
	s := server(t, member{{ID: 1, Name: "a", Self: true, Leader: true}, {ID: 2, Name: "w", Witness: true}})
	if got := Names(s.opts.Etcd); !slices.Equal(got, []string{"a"}) {
		t.Errorf("the servers are %v", got)
	}
	if err := s.remove(t.Context(), "a"); !refusedWith(err, "a is the only server") {
		t.Errorf("removing the last server: %v", err)
	}
	for _, st := range s.view(t.Context()).Servers {
		if st.Witness != (st.Name == "w") {
			t.Errorf("the view has %+v", st)
		}
	}
}

// TestRemoveNeeded: nothing is recorded if those that answer would not be a majority, as they answer now: c was missing
// when the servers were looked after, and has come back since.
func TestRemoveNeeded(t *testing.T) {
	var down atomic.Bool
	answers := func(always bool) string {
		etcd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if !always && down.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		t.Cleanup(etcd.Close)
		return etcd.URL
	}
	members := member{{ID: 1, Name: "a", Self: true, Leader: true}, {ID: 2, Name: "b", URL: answers(true)}, {ID: 3, Name: "c", URL: answers(false)}}
	s := server(t, members)
	down.Store(true)
	if err := s.remove(t.Context(), "b"); !refusedWith(err, "without b the servers that answer would not be a majority") {
		t.Errorf("removing one of two that answer, of three: %v", err)
	}
	if s.needed(members, members[2]) {
		t.Error("the one that does not answer cannot be removed")
	}
	down.Store(false)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // there is no etcd that could remove it
	defer cancel()
	if err := s.remove(ctx, "b"); err == nil || strings.Contains(err.Error(), "a majority") {
		t.Errorf("removing one of three that answer: %v", err)
	}
}

// TestRemoveWithoutMajority: it is refused at once, with the way out, whatever the server that is removed.
func TestRemoveWithoutMajority(t *testing.T) {
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	members := member{{ID: 1, Name: "a", Self: true}, {ID: 2, Name: "b", URL: down.URL}, {ID: 3, Name: "c", URL: down.URL}}
	s := server(t, members)
	for _, name := range []string{"a", "b"} {
		if err := s.remove(t.Context(), name); !refusedWith(err, "the servers that answer are not a majority") {
			t.Errorf("%s: %v", name, err)
		}
	}
	members[1].Leader = true                                     // which reaches this server, but not the other way round
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // there is no etcd that could remove it
	defer cancel()
	if err := s.remove(ctx, "c"); err == nil || strings.Contains(err.Error(), "a majority") {
		t.Errorf("with a leader: %v", err)
	}
}

// TestSealed: the keys are readable with the requesting machine's key, and the data of an earlier membership stays.
func TestSealed(t *testing.T) {
	identity, _ := age.GenerateX25519Identity()
	other, _ := age.GenerateX25519Identity()
	keys := map[string][]byte{}
	for _, name := range []string{"cluster-ca", "kubelet-ca", "front-proxy-ca", "peer-ca"} {
		keys[name+".crt"], keys[name+".key"] = []byte("c"), []byte("k-"+name)
	}
	keys["kubelet-trust.crt"], keys["service-account.key"] = []byte("t"), []byte("s")
	bundled, err := sealed.Seal(bundle{Keys: keys, Encryption: []byte("secret-of-secrets"), Initial: "a=https://192.0.2.1:2380", Settings: json.RawMessage(`{"x":1}`)}, identity.Recipient())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(bundled), "secret-of-secrets") {
		t.Error("the keys are readable on the way")
	}
	dir := t.TempDir()
	n := &Newcomer{DataDir: dir, TLSDir: filepath.Join(dir, "server", "tls"), EncryptionConfig: filepath.Join(dir, "server", "cred", "encryption.yaml"), PeerURL: "https://192.0.2.2:2380", Log: logrus.New()}
	if err := os.MkdirAll(filepath.Join(dir, "server", "db", "member"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.place(bundled, other); err == nil {
		t.Error("another machine reads the keys")
	}
	if m, _ := Load(dir); m != nil {
		t.Error("a membership was stored without keys")
	}
	m, initial, err := n.place(bundled, identity)
	if err != nil || initial != "a=https://192.0.2.1:2380" || m.PeerURL != n.PeerURL {
		t.Fatalf("%+v %s %v", m, initial, err)
	}
	if former, _ := filepath.Glob(filepath.Join(dir, FormerDir, "db-*", "member")); len(former) != 1 {
		t.Errorf("former data: %v", former)
	}
	if _, err := os.Stat(filepath.Join(dir, "server", "db", "member")); err == nil {
		t.Error("etcd would find the data of before")
	}
	if text, _ := os.ReadFile(n.EncryptionConfig); string(text) != "secret-of-secrets" {
		t.Errorf("encryption %q", text)
	}
}

// TestMoveAsideOnADisk: former data stays on the disk that it is on.
func TestMoveAsideOnADisk(t *testing.T) {
	dir := t.TempDir()
	disk, err := os.MkdirTemp("/dev/shm", "kubelith")
	if err != nil {
		t.Skip("no other disk: ", err)
	}
	defer os.RemoveAll(disk)
	probe := filepath.Join(disk, "probe")
	if os.Mkdir(probe, 0o700) == nil && os.Rename(probe, filepath.Join(dir, "probe")) == nil {
		t.Skip("temporary files are on the same disk")
	}
	_ = os.Remove(probe)
	n := &Newcomer{DataDir: dir, Log: logrus.New()}
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "server"), 0o700),
		os.Symlink(disk, filepath.Join(dir, "server", "db")),
		n.moveAside(), // nothing is there
		os.WriteFile(filepath.Join(disk, "member"), []byte("data"), 0o600),
		n.moveAside(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(disk, "member")); err == nil {
		t.Error("etcd would find the data of before")
	}
	if former, _ := filepath.Glob(filepath.Join(disk, "former", "db-*", "member")); len(former) != 1 {
		t.Errorf("former data: %v", former)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, FormerDir, "*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestMembership(t *testing.T) {
	dir := t.TempDir()
	if m, err := Load(dir); m != nil || err != nil {
		t.Errorf("%v %v", m, err)
	}
	if err := Update(dir, func(m *Membership) { m.PeerURL = "https://192.0.2.1:2380" }); err != nil {
		t.Fatal(err)
	}
	if err := Update(dir, func(m *Membership) { m.Removed = true }); err != nil {
		t.Fatal(err)
	}
	m, err := Load(dir)
	if err != nil || !m.Removed || m.PeerURL != "https://192.0.2.1:2380" {
		t.Errorf("%+v %v", m, err)
	}
	if info, err := os.Stat(File(dir)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	for _, bad := range []string{"", "{}", "x"} {
		if err := os.WriteFile(File(dir), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "is damaged") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestVerdict(t *testing.T) {
	gone := time.Now()
	for want, all := range map[string][]Status{
		"The cluster has one server.":                                        {{Role: RoleLeader}},
		"2 servers, and can lose 0 of them, as with 1":                       {{Role: RoleLeader}, {Role: RoleFollower}},
		"3 servers, and can lose 1 of them":                                  {{Role: RoleLeader}, {Role: RoleFollower}, {Role: RoleFollower}},
		"The cluster works: 2 of 3 servers answer":                           {{Role: RoleLeader}, {Role: RoleFollower, Missing: gone}, {Role: RoleFollower}},
		"Nothing can be written: 1 of 3 servers answer":                      {{Role: RoleLeader}, {Role: RoleFollower, Missing: gone}, {Role: RoleFollower, Missing: gone}},
		"2 servers and a witness, and can lose 1 of them.":                   {{Role: RoleLeader}, {Role: RoleFollower}, {Role: RoleFollower, Witness: true}},
		"one server and a witness, and can lose 0 of them, as with 1":        {{Role: RoleLeader}, {Role: RoleFollower, Witness: true}},
		"works: 2 of 3 servers, witness included, answer":                    {{Role: RoleLeader}, {Role: RoleFollower, Missing: gone}, {Role: RoleFollower, Witness: true}},
		"Nothing can be written: 1 of 2 servers answer, and at least 2 must": {{Role: RoleFollower}, {Role: RoleFollower, Missing: gone}, {Role: RoleJoining}},
	} {
		if got := Verdict(all); !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
