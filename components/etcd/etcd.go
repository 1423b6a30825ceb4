// Package etcd runs the embedded etcd member that stores the cluster.
//
// Clients reach it over a unix socket only. The peer listener is a unix socket
// too while there is one server; the member's name and peer address are
// per-server so that more can join later. Every write is synced to disk before
// it is acknowledged (etcd's default; UnsafeNoFsync is never set).
package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"kubelith.io/kubelith/components/args"
	"kubelith.io/kubelith/components/lifecycle"
)

// Options says where etcd lives.
type Options struct {
	// DataDir holds the write-ahead log and the snapshots.
	DataDir string
	// Socket is the path of the unix socket for clients.
	Socket string
	// Name of this member, unique among the servers of a cluster.
	Name string
	// Args are "key=value" arguments named as etcd's own flags.
	Args []string
	// Zap receives etcd's log.
	Zap *zap.Logger
	Log logrus.FieldLogger
}

// Server is the etcd component.
type Server struct {
	opts Options
	cfg  *embed.Config
}

var _ lifecycle.Component = (*Server)(nil)

// New checks the options and returns a Server; nothing is started or written.
func New(o Options) (*Server, error) {
	cfg := embed.NewConfig()
	cfg.Name = o.Name
	cfg.Dir = o.DataDir
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(o.Zap)
	cfg.EnableGRPCGateway = false
	// A day of writes with the default of 5 min compaction by the apiserver fits
	// easily; the quota is etcd's suggested maximum for small machines.
	cfg.QuotaBackendBytes = 4 << 30
	// A member that is alone need not wait a second to hear that nobody else leads.
	cfg.TickMs, cfg.ElectionMs = 50, 250
	client, peer := url.URL{Scheme: "unix", Path: o.Socket}, url.URL{Scheme: "unix", Path: peerSocket(o.Socket)}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	// etcd listens for peers on the URL's host alone, where clients get host and path.
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{{Scheme: "unix", Host: peer.Path}}, []url.URL{peer}
	cfg.InitialCluster = o.Name + "=" + peer.String()
	if err := applyArgs(cfg, o.Args); err != nil {
		return nil, err
	}
	return &Server{opts: o, cfg: cfg}, nil
}

// peerSocket lies beside the clients' socket.
func peerSocket(client string) string {
	return filepath.Join(filepath.Dir(client), "etcd-peer.sock")
}

// Endpoint is the address for clients of a server with this socket, in the
// form that etcd's client and the apiserver's --etcd-servers take.
func Endpoint(socket string) string { return "unix://" + socket }

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "etcd" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return nil }

// Run implements lifecycle.Component. It fails when the data is damaged.
func (s *Server) Run(ctx context.Context, ready func()) error {
	for _, dir := range []string{s.opts.DataDir, filepath.Dir(s.opts.Socket)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	for _, socket := range []string{s.opts.Socket, peerSocket(s.opts.Socket)} {
		// What a killed process left behind; the data directory's lock says that none lives.
		if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := verify(s.opts.DataDir); err != nil {
		return s.explain(err)
	}
	e, err := start(s.cfg)
	if err != nil {
		return s.explain(err)
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		return s.explain(err)
	case <-e.Server.StopNotify():
		return s.explain(errors.New("the member stopped while it started"))
	case <-ctx.Done():
		return nil
	}
	ready()
	select {
	case err := <-e.Err():
		return s.explain(err)
	case <-e.Server.StopNotify():
		return s.explain(errors.New("the member stopped by itself"))
	case <-ctx.Done():
		return nil
	}
}

// start turns a panic into an error: etcd panics on damaged files.
func start(cfg *embed.Config) (e *embed.Etcd, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	return embed.StartEtcd(cfg)
}

// explain adds what to do to the errors that an operator can act on.
func (s *Server) explain(err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "no space left"):
		return fmt.Errorf("%s: disk full: free space and start again: %w", s.opts.DataDir, err)
	case strings.Contains(text, "checksum mismatch"), strings.Contains(text, "crc mismatch"),
		strings.Contains(text, "invalid database"), strings.Contains(text, "unexpected EOF"),
		strings.Contains(text, "wal:"), strings.Contains(text, "snap:"), strings.Contains(text, "file too small"),
		strings.Contains(text, "not a bolt"), strings.Contains(text, "page "), strings.Contains(text, "proto:"), strings.Contains(text, "backend"):
		return fmt.Errorf("%s: the data is damaged: restore a copy of this directory, or move it away to start with an empty cluster: %w", s.opts.DataDir, err)
	}
	return err
}

// refused are the flags whose values the composition gives.
func refused() args.Refused {
	owned := "Kubelith sets it"
	r := args.Logging()
	for _, f := range []string{"name", "data-dir", "wal-dir", "listen-client-urls", "advertise-client-urls", "listen-client-http-urls",
		"listen-peer-urls", "initial-advertise-peer-urls", "initial-cluster", "initial-cluster-state", "initial-cluster-token",
		"config-file", "discovery-token", "discovery-endpoints", "enable-grpc-gateway", "log-level", "logger", "log-outputs", "log-format",
		"cert-file", "key-file", "trusted-ca-file", "client-cert-auth", "peer-cert-file", "peer-key-file", "peer-trusted-ca-file",
		"peer-client-cert-auth", "auto-tls", "peer-auto-tls"} {
		r[f] = owned
	}
	r["unsafe-no-fsync"] = "every write is synced to disk"
	return r
}

func applyArgs(cfg *embed.Config, keyValues []string) error {
	fs := pflag.NewFlagSet("etcd", pflag.ContinueOnError)
	fs.Int64Var(&cfg.QuotaBackendBytes, "quota-backend-bytes", cfg.QuotaBackendBytes, "")
	fs.Uint64Var(&cfg.SnapshotCount, "snapshot-count", cfg.SnapshotCount, "")
	fs.UintVar(&cfg.TickMs, "heartbeat-interval", cfg.TickMs, "")
	fs.UintVar(&cfg.ElectionMs, "election-timeout", cfg.ElectionMs, "")
	fs.UintVar(&cfg.MaxSnapFiles, "max-snapshots", cfg.MaxSnapFiles, "")
	fs.UintVar(&cfg.MaxWalFiles, "max-wals", cfg.MaxWalFiles, "")
	fs.UintVar(&cfg.MaxTxnOps, "max-txn-ops", cfg.MaxTxnOps, "")
	fs.UintVar(&cfg.MaxRequestBytes, "max-request-bytes", cfg.MaxRequestBytes, "")
	fs.StringVar(&cfg.AutoCompactionMode, "auto-compaction-mode", cfg.AutoCompactionMode, "")
	fs.StringVar(&cfg.AutoCompactionRetention, "auto-compaction-retention", cfg.AutoCompactionRetention, "")
	fs.DurationVar(&cfg.BackendBatchInterval, "backend-batch-interval", cfg.BackendBatchInterval, "")
	fs.IntVar(&cfg.BackendBatchLimit, "backend-batch-limit", cfg.BackendBatchLimit, "")
	fs.DurationVar(&cfg.WarningApplyDuration, "warning-apply-duration", cfg.WarningApplyDuration, "")
	fs.StringVar(&cfg.Metrics, "metrics", cfg.Metrics, "")
	if err := args.ApplyTo("--etcd-arg", fs, refused(), keyValues); err != nil {
		return err
	}
	if time.Duration(cfg.ElectionMs) < 5*time.Duration(cfg.TickMs) {
		return fmt.Errorf("--etcd-arg election-timeout (%d ms): must be at least five times heartbeat-interval (%d ms)", cfg.ElectionMs, cfg.TickMs)
	}
	return nil
}
