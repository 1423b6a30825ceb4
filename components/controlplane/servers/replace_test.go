package servers

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/components/controlplane/etcd"
)

// waitsFor reports whether the error lets a machine wait, for a reason of one line that has this text.
func waitsFor(err error, text string) bool {
	var later wait
	return errors.As(err, &later) && strings.Contains(err.Error(), text) && !strings.Contains(err.Error(), "\n")
}

// TestStale: a machine takes the place of a member that has not answered for a while, and of no other.
func TestStale(t *testing.T) {
	const url = "https://192.0.2.2:2380"
	self := etcd.Member{ID: 1, Name: "a", URL: "https://192.0.2.1:2380", Self: true, Leader: true}
	announced := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}, {Addresses: []string{"192.0.2.9"}}},
	}
	for name, tc := range map[string]struct {
		others []etcd.Member
		away   time.Duration // of the member 2; 0: it answers
		r      request
		stale  []uint64
		want   string // refusal
		waits  string
	}{
		"a new machine":                    {nil, 0, request{Name: "b", PeerURL: url}, nil, "", ""},
		"this server's name":               {nil, 0, request{Name: "a", PeerURL: url}, nil, "a server a is in the cluster, and runs", ""},
		"a name of one that runs":          {[]etcd.Member{{ID: 2, Name: "b", URL: url}}, 0, request{Name: "b", PeerURL: url}, nil, "a server b is in the cluster, and runs", ""},
		"a name of one that is lost":       {[]etcd.Member{{ID: 2, Name: "b", URL: url}}, time.Minute, request{Name: "b", PeerURL: url}, []uint64{2}, "", ""},
		"one that was there a moment ago":  {[]etcd.Member{{ID: 2, Name: "b", URL: url}}, 3 * time.Second, request{Name: "b", PeerURL: url}, nil, "", "server b of the cluster has not answered for 3s: after 30s this machine takes its place"},
		"one that others reach":            {[]etcd.Member{{ID: 2, Name: "b", URL: "https://192.0.2.9:2380"}}, time.Hour, request{Name: "b", PeerURL: url}, nil, "", "server b of the cluster does not answer server a, but has announced its API"},
		"its own earlier try":              {[]etcd.Member{{ID: 2, URL: url, Learner: true}}, time.Second, request{Name: "b", PeerURL: url}, []uint64{2}, "", ""},
		"another one joins":                {[]etcd.Member{{ID: 2, URL: url + "2", Learner: true}}, 0, request{Name: "b", PeerURL: url}, nil, "", "is joining"},
		"the address of another server":    {[]etcd.Member{{ID: 2, Name: "c", URL: url}}, time.Hour, request{Name: "b", PeerURL: url}, nil, "server c of the cluster has the address", ""},
		"the name of a witness that runs":  {[]etcd.Member{{ID: 2, Name: "b", URL: url, Witness: true}}, 0, request{Name: "b", PeerURL: url}, nil, "a witness b is in the cluster, and runs", ""},
		"a second witness":                 {[]etcd.Member{{ID: 2, Name: "b", URL: url, Witness: true}}, time.Hour, request{Name: "c", PeerURL: url + "2", Witness: true}, nil, "the cluster has the witness b, and one is enough", ""},
		"the same witness after its loss":  {[]etcd.Member{{ID: 2, Name: "b", URL: url, Witness: true}}, time.Hour, request{Name: "b", PeerURL: url, Witness: true}, []uint64{2}, "", ""},
		"the same witness, a moment later": {[]etcd.Member{{ID: 2, Name: "b", URL: url, Witness: true}}, time.Second, request{Name: "b", PeerURL: url, Witness: true}, nil, "", "witness b of the cluster has not answered for 1s"},
	} {
		s := server(t, append(member{self}, tc.others...), announced.DeepCopy())
		if tc.away > 0 {
			s.missing[2] = time.Now().Add(-tc.away)
		}
		ids, err := s.stale(t.Context(), tc.r)
		if tc.waits != "" && !waitsFor(err, tc.waits) || tc.waits == "" && !refusedWith(err, tc.want) || !slices.Equal(ids, tc.stale) {
			t.Errorf("%s: %v, %v", name, ids, err)
		}
	}
}

// TestDisconnected: what etcd would not do is found out before a token is used up, and the server that is missing is
// named.
func TestDisconnected(t *testing.T) {
	for _, tc := range []struct {
		voters  int
		missing []uint64
		stale   []uint64
		waits   bool
	}{
		{1, nil, nil, false},
		{2, nil, nil, false},
		{3, nil, nil, false},
		{3, []uint64{3}, nil, true},
		{3, []uint64{3}, []uint64{3}, false}, // it takes the place of the missing one
		{4, []uint64{4}, nil, false},
		{4, []uint64{3, 4}, nil, true},
		{4, []uint64{3, 4}, []uint64{4}, true},
		{5, []uint64{5}, nil, false},
		{5, []uint64{4, 5}, nil, true},
	} {
		members := member{{ID: 99, Learner: true}}
		for id := range tc.voters {
			members = append(members, etcd.Member{ID: uint64(id + 1), Name: fmt.Sprintf("s%d", id+1), Self: id == 0})
		}
		s := server(t, members)
		for _, id := range tc.missing {
			s.missing[id] = time.Now().Add(-time.Minute)
		}
		err := s.disconnected(members, tc.stale)
		if tc.waits && (!waitsFor(err, "has not answered for 1m0s") || !waitsFor(err, "kubelith etcd remove s")) || !tc.waits && err != nil {
			t.Errorf("%d voters without %v, replacing %v: %v", tc.voters, tc.missing, tc.stale, err)
		}
	}
}

// TestLearned: a machine begins when each server that answers knows it.
func TestLearned(t *testing.T) {
	var asked atomic.Int32
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/members" || asked.Add(1) < 3 {
			_, _ = w.Write([]byte(`[{"id":1},{"id":2}]`))
			return
		}
		_, _ = w.Write([]byte(`[{"id":1,"peerURLs":["https://192.0.2.1:2380"],"name":"a"},{"id":9223372036854775809,"isLearner":true}]`))
	}))
	defer slow.Close()
	dead := "http://127.0.0.1:1"
	s := server(t, member{{ID: 1, Self: true, URL: dead}, {ID: 2, Name: "b", URL: slow.URL}, {ID: 3, Name: "c", URL: dead}, {ID: 4, URL: dead, Learner: true}})
	s.missing[3] = time.Now()
	if err := s.learned(t.Context(), 9223372036854775809); err != nil || asked.Load() != 3 {
		t.Errorf("after %d questions: %v", asked.Load(), err)
	}
	if s.knows(t.Context(), etcd.Member{URL: slow.URL}, 5) || s.knows(t.Context(), etcd.Member{URL: dead}, 1) {
		t.Error("a member knows one that is not in its list")
	}
}
