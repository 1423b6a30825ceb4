// Package etcd runs the embedded etcd member that stores the cluster.
//
// Clients connect over a unix socket only. So do peers while there is one server. With several servers the members know
// each other over mutual TLS (Peer); a member that runs alone begins that in place (OpenToPeers). Every write is synced
// to disk before it is acknowledged (etcd's default; UnsafeNoFsync is never set).
package etcd

import (
	"context"
	"errors"
	"expvar"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/reconcile"
)

// Options configures the member.
type Options struct {
	// DataDir holds the write-ahead log and the snapshots.
	DataDir string
	// Socket is the path of the unix socket for clients.
	Socket string
	// Name of this member, unique among the servers of a cluster.
	Name string
	// Args are "key=value" arguments named as etcd's own flags.
	Args []string
	// Peer is how the members of several servers reach each other; nil while there is one server.
	Peer *Peer
	// Witness marks a member without a server: see Member.Witness.
	Witness bool
	// Reset makes this member the only one, whatever the others are: what only they have acknowledged is lost.
	Reset bool
	// Removed, unless it is nil, is called when the other members have removed this one. Run fails with ErrRemoved
	// then.
	Removed func()
	// Ending, unless it is nil, is closed when the process begins to stop.
	Ending <-chan struct{}
	// First, unless it is nil, is called when etcd answers and before it is ready: no client writes yet.
	First func(context.Context)
	// Metrics, unless it is nil, receives etcd's own metrics.
	Metrics prometheus.Registerer
	// Zap receives etcd's log.
	Zap *zap.Logger
}

// tickMs and electionMs are the heartbeat and the election timeout of a lone member in milliseconds. It does not wait
// for them to elect itself (campaign), and every heartbeat wakes two goroutines.
const tickMs, electionMs = 100, 500

// Server is the etcd component.
type Server struct {
	opts     Options
	cfg      *embed.Config
	stopping atomic.Bool
	removed  atomic.Bool // the other members have removed this one
	fatal    fatal
	answers  chan struct{}
	slowSync time.Duration
	running  atomic.Pointer[embed.Etcd]
	begun    reconcile.Broadcast             // running is another one
	over     atomic.Pointer[context.Context] // see leaderless
	reopen   chan *embed.Config              // for the next run
	lone     atomic.Pointer[lone]            // nil: it has others, or does not answer yet
}

var _ lifecycle.Component = (*Server)(nil)

// New checks the options and returns a Server; nothing is started or written.
func New(o Options) (*Server, error) {
	s := &Server{opts: o, fatal: make(fatal, 1), answers: make(chan struct{}), reopen: make(chan *embed.Config)}
	var err error
	s.cfg, err = s.configure(o.Peer)
	return s, err
}

// configure returns the configuration of a member that runs alone (peer is nil), or of one of several.
func (s *Server) configure(peer *Peer) (*embed.Config, error) {
	o, cfg := s.opts, embed.NewConfig()
	// First: defining the flags resets some fields to the flags' own defaults.
	fs := flagSet(cfg)
	cfg.Name = o.Name
	cfg.Dir = o.DataDir
	cfg.ForceNewCluster = o.Reset
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(o.Zap.WithOptions(
		zap.WrapCore(func(c zapcore.Core) zapcore.Core { return observed{c, s} }),
		zap.WithFatalHook(s.fatal), zap.WithPanicHook(s.fatal)))
	cfg.EnableGRPCGateway = false
	// A day of writes with the apiserver's default compaction every 5 min fits easily; the quota is etcd's suggested
	// maximum for small machines.
	cfg.QuotaBackendBytes = 4 << 30
	// When it starts, etcd applies its log from the last snapshot on. While it is more than 5000 entries behind
	// (maxGapBetweenApplyAndCommitIndex) it refuses its own first request, at once, and retries without a pause: tens
	// of thousands of log lines that delay the apply. A snapshot for every 4000 entries avoids that.
	cfg.SnapshotCount = 4000
	client := url.URL{Scheme: "unix", Path: o.Socket}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	if o.Witness {
		cfg.AdvertiseClientUrls = []url.URL{{Scheme: "unix", Path: witnessPath}}
	}
	if peer == nil {
		s.alone(cfg)
	} else if err := peer.configure(cfg); err != nil {
		return nil, err
	} else {
		cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.ChainUnaryInterceptor(s.unlessLeaderless, s.unlessLost)}
	}
	return cfg, applyArgs(cfg, fs, o.Args)
}

// alone configures a member that has no others.
func (s *Server) alone(cfg *embed.Config) {
	cfg.TickMs, cfg.ElectionMs = tickMs, electionMs
	peer := url.URL{Scheme: "unix", Path: peerSocket(s.opts.Socket)}
	// etcd uses only the URL's host to listen for peers, but host and path for clients.
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{{Scheme: "unix", Host: peer.Path}}, []url.URL{peer}
	cfg.InitialCluster = cfg.Name + "=" + peer.String()
	s.serveAlone(cfg)
}

// observed is etcd's log. It drops errors while etcd stops: etcd reports its own closed listeners as an error at every
// stop. It notices that the member was removed, which etcd reports only there.
type observed struct {
	zapcore.Core
	server *Server
}

// With implements zapcore.Core.
func (c observed) With(fields []zapcore.Field) zapcore.Core {
	return observed{c.Core.With(fields), c.server}
}

// Check implements zapcore.Core.
func (c observed) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if e.Level >= zapcore.ErrorLevel && c.server.stopping.Load() {
		return to
	}
	if c.Enabled(e.Level) {
		return to.AddCore(e, c)
	}
	return to
}

// Write implements zapcore.Core.
func (c observed) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if e.Level >= zapcore.WarnLevel {
		for _, f := range fields {
			if err, ok := f.Interface.(error); ok && strings.Contains(err.Error(), permanentlyRemoved) {
				c.server.removed.Store(true)
			}
		}
	}
	return c.Core.Write(e, fields)
}

// peerSocket returns a path beside the clients' socket.
func peerSocket(client string) string {
	return filepath.Join(filepath.Dir(client), "etcd-peer.sock")
}

// Endpoint is the address for clients of a server with this socket, in the
// form that etcd's client and the apiserver's --etcd-servers take.
func Endpoint(socket string) string { return "unix://" + socket }

// Answers is closed when etcd answers its first request, which is a moment after it is ready, or much later on a slow
// disk. Earlier requests wait, but no longer than their own limit.
func (s *Server) Answers() <-chan struct{} { return s.answers }

// SlowSync returns how long the disk took for a sync when etcd started, if that is long, else 0. It is known once etcd
// is ready.
func (s *Server) SlowSync() time.Duration { return s.slowSync }

// Upstream returns the configuration that etcd is started with.
func (s *Server) Upstream() *embed.Config { return s.cfg }

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "etcd" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return nil }

// Run implements lifecycle.Component. It fails when the data is damaged.
func (s *Server) Run(ctx context.Context, ready func()) error {
	if err := s.makeRoom(); err != nil {
		return err
	}
	if err := verify(s.opts.DataDir); err != nil {
		return s.explain(err)
	}
	// What fails here fails in etcd too, which gives the reason.
	if took, err := syncTime(s.opts.DataDir); err == nil && s.giveTime(took) {
		s.slowSync = took
		s.opts.Zap.Warn("the disk is slow: raising the timeouts of requests", zap.Duration("sync-took", took))
	}
	if s.opts.Metrics != nil {
		if err := s.opts.Metrics.Register(metrics{prometheus.DefaultGatherer}); err != nil {
			return fmt.Errorf("metrics of etcd: %w", err)
		}
	}
	for first := true; ; first = false {
		e, err := s.start()
		if err != nil {
			return s.explain(err)
		}
		next, err := s.serve(ctx, e, first, ready)
		if err != nil {
			// Its connections are closed at once, so that clients do not wait for answers. The rest may wait for the
			// goroutine that gave up, and so for ever.
			lone := s.lone.Load()
			go func() { lone.cut(); e.Close() }()
			return s.explain(err)
		}
		if err := s.stop(e); err != nil {
			return s.explain(err)
		}
		if next == nil {
			return nil
		}
		s.replace(next)
		s.stopping.Store(false)
		if err := s.makeRoom(); err != nil {
			return err
		}
	}
}

// replace gives the next run of etcd its configuration, and the time that the disk needs.
func (s *Server) replace(next *embed.Config) {
	s.cfg = next
	s.giveTime(s.slowSync)
}

// slowSync is how long a sync to disk may take before etcd's requests get more time than usual.
const slowSync = 500 * time.Millisecond

// syncTime returns how long the disk takes to sync a small file.
func syncTime(dir string) (time.Duration, error) {
	f, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.WriteString("x"); err != nil {
		return 0, err
	}
	began := time.Now()
	err = f.Sync()
	return time.Since(began), err
}

// giveTime adapts etcd to a slow disk, and reports whether it did.
//
// Acknowledged writes are in the log; etcd also commits them to its database, ten times a second, with two syncs that
// block reads and writes. With a slow disk it commits after the time of twenty syncs, so that most requests wait for
// the log alone. After a crash there is a little more log to apply.
//
// The election timeout also bounds requests and leases. A request may take 5 s and twice the timeout (ReqTimeout), and
// a lease lasts at least 1.4 times the timeout (MinLeaseTTL, with five ticks to a timeout). Where a write takes some
// seconds, requests would fail with less, and keys of the API server would expire before it renews them. Members of one
// cluster must have the same heartbeat and election timeout: with several servers they stay as they are.
// Source: etcd/server/config/config.go, etcd/server/etcdserver/server.go.
func (s *Server) giveTime(sync time.Duration) bool {
	if sync < slowSync {
		return false
	}
	if s.cfg.BackendBatchInterval == 0 {
		s.cfg.BackendBatchInterval = 20 * sync
	}
	if s.cfg.TickMs == tickMs && s.cfg.ElectionMs == electionMs { // otherwise the user or other members set them
		election := min(max(4*sync, 10*time.Second), 50*time.Second) // etcd's limit
		s.cfg.TickMs, s.cfg.ElectionMs = uint(election.Milliseconds()/5), uint(election.Milliseconds())
	}
	return true
}

// makeRoom creates the directories and removes the sockets of a killed process; the data directory's lock proves that
// no such process runs.
func (s *Server) makeRoom() error {
	runDir := filepath.Dir(s.opts.Socket)
	if err := os.MkdirAll(s.opts.DataDir, 0o700); err != nil {
		return fmt.Errorf("cannot create the data directory: mount it writable or use another --data-dir: %w", err)
	}
	if err := os.MkdirAll(runDir, 0o700); err != nil {
		return fmt.Errorf("cannot create the run directory: mount it writable or use another --run-dir: %w", err)
	}
	for _, socket := range []string{s.opts.Socket, peerSocket(s.opts.Socket), httpSocket(s.opts.Socket)} {
		if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot remove an old socket: mount %s writable or use another --run-dir: %w", runDir, err)
		}
	}
	return nil
}

// serve waits for ctx, for OpenToPeers, which gives the next configuration, or for etcd to give up. It is ready when
// its data is read and its socket open: it answers after it has elected itself, and earlier requests wait for that
// instead of for a retry. With First it is ready later. A member that joins answers once it has all data and a vote.
func (s *Server) serve(ctx context.Context, e *embed.Etcd, first bool, ready func()) (next *embed.Config, err error) {
	if first && s.opts.First == nil {
		ready()
	}
	s.running.Store(e)
	s.begun.Send()
	serving, cancel := context.WithCancel(ctx)
	defer cancel()
	over := leaderless(serving, s.opts.Ending, func() bool { return e.Server.Leader() != 0 })
	s.over.Store(&over)
	go campaign(serving, e) // not waited for: it asks raft, which does not answer any more once it has given up
	if s.Open() {
		var silent sync.WaitGroup
		silent.Go(func() { endSilent(serving, e) })
		defer func() { cancel(); silent.Wait() }()
	}
	var done, saved chan struct{} // closed when First has ended; nil while it has not begun
	defer func() {
		cancel()
		if saved != nil { // it uses the socket; with a large database it may not notice the end in time
			select {
			case <-saved:
			case <-time.After(firstPatience):
			}
		}
	}()
	elected := e.Server.ReadyNotify()
	var vote <-chan time.Time
	for {
		select {
		case <-elected:
			elected = nil // it is sent once
			vote = time.After(0)
		case <-vote:
			if e.Server.IsLearner() {
				vote = time.After(voteEvery)
				continue
			}
			vote = nil
			if !first {
				continue
			}
			close(s.answers)
			if s.opts.First != nil {
				saved = make(chan struct{})
				done = saved
				go func() { s.opts.First(serving); close(saved) }()
			}
		case <-done:
			done = nil
			ready()
		case next := <-s.reopen:
			return next, nil
		case err := <-e.Err():
			return nil, s.ended(err)
		case err := <-s.fatal:
			return nil, s.ended(err)
		case <-e.Server.StopNotify():
			return nil, s.ended(errors.New("the member stopped unexpectedly"))
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// firstPatience is how long the end of etcd waits for First.
const firstPatience = 3 * time.Second

// campaignFirst and campaignMost are how often a lone member is asked to elect itself: less and less often.
const campaignFirst, campaignMost = 2 * time.Millisecond, time.Second

// campaign makes the only voting member elect itself as soon as it has read its log, instead of after one to five
// ticks. It does so by the message with which a leader hands over to another member. If raft should refuse it, the
// ticks remain.
// Source: go.etcd.io/raft/v3/raft.go, stepFollower and hup.
func campaign(ctx context.Context, e *embed.Etcd) {
	id := uint64(e.Server.MemberID())
	for wait := campaignFirst; e.Server.Leader() == 0; wait = min(wait*9/8, campaignMost) {
		if s := raftStatus(); s.ID == id && caughtUp(s) {
			if !onlyVoter(s) {
				return
			}
			if e.Server.Process(ctx, &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: &id, To: &id}) != nil {
				return // it stops, or was removed
			}
		}
		if !reconcile.Sleep(ctx, wait) {
			return
		}
	}
}

// raftStatus returns the state of raft in the member that started last in this process, or nothing.
func raftStatus() raft.Status {
	published, ok := expvar.Get("raft.status").(expvar.Func)
	if !ok {
		return raft.Status{}
	}
	s, _ := published.Value().(raft.Status)
	return s
}

// onlyVoter reports whether a member is the only voter. One that has joined and has no vote yet is not.
func onlyVoter(s raft.Status) bool {
	voters := s.Config.Voters.IDs()
	_, votes := voters[s.ID]
	return votes && len(voters) == 1
}

// caughtUp reports whether raft knows that all is applied that its log has. Before that it would look for changes of
// members in the rest, and panic where etcd, which is ahead of it, has dropped that from memory.
func caughtUp(s raft.Status) bool { return s.GetCommit() > 0 && s.Applied >= s.GetCommit() }

// stop ends etcd. If etcd can no longer write, everything that it has acknowledged is in its log.
func (s *Server) stop(e *embed.Etcd) error {
	s.stopping.Store(true)
	s.spareWitness(e)
	lone, closed := s.lone.Swap(nil), make(chan struct{})
	go func() { lone.drain(); e.Close(); close(closed) }()
	select {
	case <-closed:
		return nil
	case err := <-s.fatal:
		return err
	}
}

// start starts etcd. It turns a panic into an error: etcd panics on damaged files.
func (s *Server) start() (*embed.Etcd, error) {
	type result struct {
		e   *embed.Etcd
		err error
	}
	started := make(chan result, 1)
	go func() {
		var r result
		defer func() {
			if p := recover(); p != nil {
				r.err = fmt.Errorf("%v", p)
			}
			started <- r
		}()
		r.e, r.err = embed.StartEtcd(s.cfg)
	}()
	select {
	case r := <-started:
		return r.e, r.err
	case err := <-s.fatal:
		return nil, err
	}
}

// fatal receives the reason when etcd gives up. Where it would end the process (a write to a full disk fails) Run ends
// instead, and everything else in order.
type fatal chan error

var _ zapcore.CheckWriteHook = fatal(nil)

// OnWrite implements zapcore.CheckWriteHook. Like os.Exit and panic, it does not return: etcd's code does not expect to
// go on after a failed write.
func (f fatal) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(entry.Message)
	for _, field := range fields {
		if cause, ok := field.Interface.(error); ok {
			err = fmt.Errorf("%w: %w", err, cause)
		}
	}
	select {
	case f <- err:
	default: // it has given up already
	}
	select {}
}

// explain adds what to do to the errors that an operator can act on. Only contradictions in the files are damage: a
// disk that cannot be read or written proves nothing about them.
func (s *Server) explain(err error) error {
	text := err.Error()
	says := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
	}
	switch {
	case says("no space left", "disk quota exceeded"):
		return fmt.Errorf("%s: disk full: free space and start again: %w", s.opts.DataDir, err)
	case says("permission denied", "operation not permitted"):
		return fmt.Errorf("%s: access denied: correct the owner and mode of its files, "+
			"or the policy that confines this process (SELinux, AppArmor), and start again: %w", s.opts.DataDir, err)
	case says("read-only file system"):
		return fmt.Errorf("%s: mounted read-only: find the reason in the kernel log, mount it writable and start again: %w", s.opts.DataDir, err)
	case says("input/output error"):
		return fmt.Errorf("%s: the disk is failing: check the kernel log, save a copy of this directory, and start again on a healthy disk: %w", s.opts.DataDir, err)
	case says("too many open files", "cannot allocate memory"):
		return fmt.Errorf("%s: the host's limits are too low: raise the one for open files or memory, and start again: %w", s.opts.DataDir, err)
	case says("found data inconsistency with peers"):
		return fmt.Errorf("%s: the data differs from that of the other servers: "+
			"move its member directory away and start again, and the server copies theirs: %w", s.opts.DataDir, err)
	case says("checksum mismatch", "crc mismatch", "invalid database", "unexpected EOF",
		"wal: no *.wal file", "wal: file not found", "wal: slice bounds out of range", "wal: max entry size limit exceeded",
		"no available snapshot", "file too small", "not a bolt", "proto:"):
		return fmt.Errorf("%s: the data is damaged: keep it, and restore a backup of this directory in its place: %w", s.opts.DataDir, err)
	}
	return err
}
