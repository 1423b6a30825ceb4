package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/quorum"
	"go.uber.org/zap"
)

func options(dir string, args ...string) Options {
	return Options{DataDir: filepath.Join(dir, "db"), Socket: filepath.Join(dir, "etcd.sock"), Name: "default", Args: args, Zap: zap.NewNop()}
}

// A member starts, is ready, ends without an error, and starts again on the
// same data, also over the sockets that a killed process leaves behind.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	for _, socket := range []string{"etcd.sock", "etcd-peer.sock", "etcd-http.sock"} {
		if err := os.WriteFile(filepath.Join(dir, socket), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		s, err := New(options(dir, "quota-backend-bytes=16777216"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		wasReady := false
		err = s.Run(ctx, func() {
			wasReady = true
			if info, err := os.Stat(filepath.Join(dir, "etcd.sock")); err != nil || info.Mode()&os.ModeSocket == 0 {
				t.Errorf("the clients' socket is not there: %v", err)
			}
			cancel()
		})
		cancel()
		if err != nil || !wasReady {
			t.Fatalf("ready: %v, error: %v", wasReady, err)
		}
	}
}

// TestCampaign: a lone member answers at once, also where its election timeout is long, on new data and on old.
func TestCampaign(t *testing.T) {
	dir := t.TempDir()
	for range 6 {
		s, err := New(options(dir, "heartbeat-interval=10000", "election-timeout=50000"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx, func() {}) }()
		began := time.Now()
		select {
		case <-s.Answers():
			t.Logf("it answers after %s", time.Since(began))
			writeMuch(ctx, t, s)
		case <-time.After(8 * time.Second): // the first heartbeat would come after ten
			t.Error("it waits for an election timeout")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

// TestOnlyVoter: only a member that votes, and alone, may elect itself.
func TestOnlyVoter(t *testing.T) {
	for name, tc := range map[string]struct {
		voters []uint64
		want   bool
	}{
		"the only voter":                         {[]uint64{1}, true},
		"one of several":                         {[]uint64{1, 2}, false},
		"without a vote, of a cluster of one":    {[]uint64{2}, false},
		"without a vote, of a cluster of two":    {[]uint64{2, 3}, false},
		"a member that knows of no members, yet": {nil, false},
	} {
		var s raft.Status
		s.ID = 1
		s.Config.Voters[0] = quorum.MajorityConfig{}
		for _, v := range tc.voters {
			s.Config.Voters[0][v] = struct{}{}
		}
		if got := onlyVoter(s); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// writeMuch makes the log so long that etcd drops a part of it from memory.
func writeMuch(ctx context.Context, t *testing.T, s *Server) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{Endpoint(s.opts.Socket)}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var writers sync.WaitGroup
	for i := range 50 {
		writers.Go(func() {
			for range 20 {
				if _, err := c.Put(ctx, fmt.Sprint("key-", i), "value"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
}

// TestWitnessMark: members know a witness by etcd's member list, until it starts without the mark.
func TestWitnessMark(t *testing.T) {
	dir := t.TempDir()
	for _, witness := range []bool{true, false} {
		o := options(dir)
		o.Witness = witness
		s, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx, func() {}) }()
		select {
		case <-s.Answers():
		case <-ctx.Done():
		}
		if all := s.Members(); len(all) != 1 || all[0].Witness != witness || !all[0].Self {
			t.Errorf("members %+v, want a witness: %v", all, witness)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

// Where etcd's own goroutine would end the process, Run returns an error with a remedy, also while etcd stops.
func TestUpstreamGivesUp(t *testing.T) {
	for name, cause := range map[string]struct {
		stopping bool
		log      func(*zap.Logger)
	}{
		"fatal":              {false, func(l *zap.Logger) { l.Fatal("failed to commit tx", zap.Error(syscall.ENOSPC)) }},
		"panic":              {false, func(l *zap.Logger) { l.Panic("failed to save snapshot", zap.Error(syscall.ENOSPC)) }},
		"fatal at the close": {true, func(l *zap.Logger) { l.Fatal("failed to commit tx", zap.Error(syscall.ENOSPC)) }},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(options(t.TempDir()))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			err = s.Run(ctx, func() {
				s.stopping.Store(cause.stopping)
				go cause.log(s.cfg.GetLogger())
			})
			if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "disk full: free space") || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestComposition(t *testing.T) {
	s, err := New(options("/d", "max-concurrent-streams=7777", "quota-backend-bytes=16777216"))
	if err != nil {
		t.Fatal(err)
	}
	c := s.Upstream()
	for _, u := range slices.Concat(c.ListenClientUrls, c.ListenClientHttpUrls, c.ListenPeerUrls) {
		if u.Scheme != "unix" {
			t.Errorf("etcd would listen on %s", u.String())
		}
	}
	if len(c.ListenMetricsUrls) > 0 {
		t.Error("etcd would listen for metrics")
	}
	if c.UnsafeNoFsync {
		t.Error("writes would not be synced")
	}
	if c.MaxConcurrentStreams != 7777 || c.QuotaBackendBytes != 16<<20 {
		t.Errorf("arguments are lost: %d streams, %d bytes", c.MaxConcurrentStreams, c.QuotaBackendBytes)
	}
	if Endpoint("/d/etcd.sock") != "unix:///d/etcd.sock" {
		t.Errorf("the endpoint is %s", Endpoint("/d/etcd.sock"))
	}
}

func TestBadArgs(t *testing.T) {
	for arg, want := range map[string]string{
		"unsafe-no-fsync=true":    "every write is synced to disk",
		"data-dir=/x":             "Kubelith sets it",
		"listen_client_urls=x":    "Kubelith sets it",
		"quota-backend-byte=1":    `did you mean "quota-backend-bytes"?`,
		"quota-backend-bytes=big": "--etcd-arg quota-backend-bytes",
		"election-timeout=99":     "at least five times heartbeat-interval",

		"max-concurrent-streams=999": "must be at least 1000",
	} {
		if _, err := New(options("/d", arg)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", arg, err, want)
		}
	}
}

func TestExplain(t *testing.T) {
	s := &Server{opts: options("/d")}
	for text, want := range map[string]string{
		"write /d/db: no space left on device":                      "disk full: free space",
		"walpb: crc mismatch":                                       "damaged",
		"snap: no available snapshot":                               "damaged",
		"/d/db/member/snap/db: invalid database: invalid page type": "damaged",
		"wal: no *.wal file in /d/db/member/wal":                    "damaged",
		"open /d/db/member/wal/0-0.wal: permission denied":          "correct the owner and mode",
		"wal: open /d/db/member/wal/0-0.wal: permission denied":     "correct the owner and mode",
		"/d/db: invalid database: read: input/output error":         "the disk is failing",
		"failed to open backend: /d/db: read-only file system":      "mounted read-only",
		"wal: open /d/db/member/wal/0-0.wal: too many open files":   "limits",
		"proto: cannot parse invalid wire-format data":              "damaged",
		"proto:\u00a0cannot parse invalid wire-format data":         "damaged", // the library draws the blank by lot
	} {
		err := s.explain(errors.New(text))
		if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v does not say %q", text, err, want)
		}
		if damaged := strings.Contains(err.Error(), "damaged"); damaged != (want == "damaged") || strings.Contains(err.Error(), "move") {
			t.Errorf("%s: bad advice: %v", text, err)
		}
	}
	plain := errors.New("listen unix /d/etcd.sock: address already in use")
	if err := s.explain(plain); err != plain {
		t.Errorf("an error of another kind was changed to %v", err)
	}
}

// On a disk whose syncs take long, requests and leases get the time that they need, and commits leave some to requests;
// what the user has set stays.
func TestGiveTime(t *testing.T) {
	for name, tc := range map[string]struct {
		args     []string
		sync     time.Duration
		election time.Duration
		commit   time.Duration // 0: etcd's default
	}{
		"a disk as usual":           {nil, 20 * time.Millisecond, 500 * time.Millisecond, 0},
		"one second for a sync":     {nil, time.Second, 10 * time.Second, 20 * time.Second},
		"five seconds":              {nil, 5 * time.Second, 20 * time.Second, 100 * time.Second},
		"half a minute":             {nil, 30 * time.Second, 50 * time.Second, 10 * time.Minute},
		"the user's own, elections": {[]string{"heartbeat-interval=50", "election-timeout=500"}, 5 * time.Second, 500 * time.Millisecond, 100 * time.Second},
		"the user's own, commits":   {[]string{"backend-batch-interval=1s"}, 5 * time.Second, 20 * time.Second, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(options(t.TempDir(), tc.args...))
			if err != nil {
				t.Fatal(err)
			}
			s.giveTime(tc.sync)
			if got := time.Duration(s.cfg.ElectionMs) * time.Millisecond; got != tc.election {
				t.Errorf("the election timeout is %s, want %s", got, tc.election)
			}
			if got := s.cfg.BackendBatchInterval; got != tc.commit {
				t.Errorf("a commit comes every %s, want %s", got, tc.commit)
			}
			if err := s.cfg.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
	dir := t.TempDir()
	if took, err := syncTime(dir); err != nil || took <= 0 {
		t.Errorf("%s, %v", took, err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
	if _, err := syncTime(filepath.Join(dir, "none")); err == nil {
		t.Error("no error without a directory")
	}
}
