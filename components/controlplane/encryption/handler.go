package encryption

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
)

// Path is where administrators see the keys in use (GET) and begin a rotation (POST). KeyPath is where a server gets a
// key from another one (POST). Who may do either is up to the authorizer of the API server.
const (
	Path    = "/kubelith/v1/encryption"
	KeyPath = Path + "/key"
)

// maxMessage bounds a request for a key, and its answer, in bytes.
const maxMessage = 64 << 10

// Handler serves Path and KeyPath, and passes on other requests. Requests have been authorized.
func (s *Server) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == Path && r.Method == http.MethodGet:
			view, err := s.view(r.Context())
			answer(w, view, err)
		case r.URL.Path == Path && r.Method == http.MethodPost:
			view, err := s.begin(r.Context())
			answer(w, view, err)
		case r.URL.Path == KeyPath && r.Method == http.MethodPost:
			sealed, err := s.give(r)
			answer(w, sealed, err)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// refusal is why a request is not met; it is for a person.
type refusal string

func (r refusal) Error() string { return string(r) }

// answer sends v or, as clients of the API expect it, a Status with the error.
func answer(w http.ResponseWriter, v any, err error) {
	status := http.StatusOK
	if err != nil {
		var no refusal
		failed := apierrors.NewInternalError(err).Status()
		if errors.As(err, &no) {
			failed = apierrors.NewConflict(schema.GroupResource{Resource: "keys"}, "", err).Status()
		}
		failed.TypeMeta, failed.Message = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, oneLine(err)
		v, status = failed, int(failed.Code)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client is gone
}

// View is what Path shows to administrators.
type View struct {
	// Asked is the server that answers.
	Asked string `json:"asked"`
	// Rotation is the current one, or the last.
	Rotation State `json:"rotation"`
	// Doing says what the servers are doing; empty: no rotation is under way.
	Doing string `json:"doing,omitempty"`
	// Waiting names the servers that hold up the phase, with the reason.
	Waiting string `json:"waiting,omitempty"`
	// Secrets is how many Secrets each key encrypts; the empty one stands for plain text.
	Secrets map[string]int `json:"secrets"`
	// Servers are all, by name.
	Servers []ServerView `json:"servers"`
}

// ServerView is one server.
type ServerView struct {
	Name string `json:"name"` // empty: it joins
	Report
}

func (s *Server) view(ctx context.Context) (*View, error) {
	record, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	counts, err := s.count(ctx)
	if err != nil {
		return nil, err
	}
	v := &View{Asked: s.opts.Name, Rotation: record.State, Secrets: counts}
	servers := s.opts.Servers()
	if record.State.active() {
		v.Doing, v.Waiting = record.State.Phase.described(), record.State.waiting(servers, record.Reports)
	}
	for _, name := range slices.Sorted(slices.Values(servers)) {
		v.Servers = append(v.Servers, ServerView{Name: name, Report: record.Reports[name]})
	}
	return v, nil
}

// begin starts a rotation; one that is under way just goes on. The key is in this server's file before others know of it.
func (s *Server) begin(ctx context.Context) (*View, error) {
	if s.opts.Foreign != "" {
		return nil, refusal(s.opts.Foreign)
	}
	if _, err := pki.ReadEncryption(s.opts.File); err != nil {
		return nil, refusal(err.Error())
	}
	record, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	if record.State.active() && !s.lost(record) {
		return s.view(ctx)
	}
	for _, name := range s.opts.Servers() {
		if why := record.Reports[name].Problem; why != "" {
			return nil, refusal(fmt.Sprintf("server %s cannot take a new key: %s", name, why))
		}
	}
	random := make([]byte, 3)
	rand.Read(random) // never fails
	key := pki.NewEncryptionKey("key-" + time.Now().UTC().Format("20060102") + "-" + hex.EncodeToString(random))
	if err := s.change(func(keys []pki.EncryptionKey) []pki.EncryptionKey { return with(keys, key) }); err != nil {
		return nil, err
	}
	next := State{Key: key.Name, Phase: phaseDistribute, Started: time.Now().UTC().Truncate(time.Second)}
	for {
		err := s.advance(ctx, record, next)
		if err == nil {
			break
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return nil, err
		}
		before := record.State // a report came in between, or another rotation
		if record, err = s.read(ctx); err != nil {
			return nil, err
		}
		if record.State != before && record.State.active() {
			break
		}
	}
	s.opts.Log.Infof("rotation of the key for Secrets to %s: %s", key.Name, phaseDistribute.described())
	s.wake.Send()
	return s.view(ctx)
}

// lost reports whether the new key is gone with the only server that had it. Nothing is encrypted with it yet.
func (s *Server) lost(r record) bool {
	if r.State.Phase != phaseDistribute {
		return false
	}
	keys, err := pki.ReadEncryption(s.opts.File)
	if err != nil || has(keys, r.State.Key) {
		return false
	}
	return !slices.ContainsFunc(s.opts.Servers(), func(name string) bool { return slices.Contains(r.Reports[name].Reads, r.State.Key) })
}

// request is what a server sends for a key, and sealed what it gets.
type request struct {
	Key       string `json:"key"`       // its name
	Recipient string `json:"recipient"` // a public key of age, made for this request
}

type sealed struct {
	Sealed []byte `json:"sealed"` // a pki.EncryptionKey in JSON, encrypted for the recipient
}

// give returns a key of this server, to a server of the cluster only.
func (s *Server) give(req *http.Request) (*sealed, error) {
	who, ok := apirequest.UserFrom(req.Context())
	if !ok || !slices.Contains(who.GetGroups(), names.Servers) {
		return nil, refusal("only servers get keys")
	}
	name, ok := strings.CutPrefix(who.GetName(), names.ServerUserPrefix)
	if !ok || !slices.Contains(s.opts.Servers(), name) {
		return nil, refusal(fmt.Sprintf("%s is no server of the cluster", who.GetName()))
	}
	var r request
	if err := json.NewDecoder(io.LimitReader(req.Body, maxMessage)).Decode(&r); err != nil {
		return nil, refusal(fmt.Sprintf("the request cannot be read: %v", err))
	}
	recipient, err := age.ParseX25519Recipient(r.Recipient)
	if err != nil {
		return nil, refusal(fmt.Sprintf("the key for the answer cannot be read: %v", err))
	}
	keys, err := pki.ReadEncryption(s.opts.File)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(keys, func(k pki.EncryptionKey) bool { return k.Name == r.Key })
	if i < 0 {
		return nil, refusal(fmt.Sprintf("server %s does not have the key %s", s.opts.Name, r.Key))
	}
	plain, err := json.Marshal(keys[i])
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w, err := age.Encrypt(&out, recipient)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return &sealed{out.Bytes()}, nil
}
