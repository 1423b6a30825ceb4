package etcd

import (
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/pkg/v3/flags"
	"go.etcd.io/etcd/server/v3/embed"

	"kubelith.io/kubelith/base/args"
)

// flagSet has etcd's own flags, bound to cfg.
func flagSet(cfg *embed.Config) *flag.FlagSet {
	fs := flag.NewFlagSet("etcd", flag.ContinueOnError)
	cfg.AddFlags(fs)
	return fs
}

// applyArgs sets the user's arguments on fs, which is bound to cfg.
func applyArgs(cfg *embed.Config, fs *flag.FlagSet, keyValues []string) error {
	all := pflag.NewFlagSet("etcd", pflag.ContinueOnError)
	all.AddGoFlagSet(fs)
	if err := args.ApplyTo("--etcd-arg", all, Refused(), keyValues); err != nil {
		return err
	}
	// The only accepted flag that etcd itself copies after parsing.
	cfg.MaxConcurrentStreams = flags.Uint32FromFlag(fs, "max-concurrent-streams")
	if time.Duration(cfg.ElectionMs) < 5*time.Duration(cfg.TickMs) {
		return fmt.Errorf("--etcd-arg election-timeout (%d ms): must be at least five times heartbeat-interval (%d ms)", cfg.ElectionMs, cfg.TickMs)
	}
	if cfg.MaxConcurrentStreams < minStreams {
		return fmt.Errorf("--etcd-arg max-concurrent-streams (%d): must be at least %d, as all watches and requests of the API server share a connection",
			cfg.MaxConcurrentStreams, minStreams)
	}
	return nil
}

// minStreams is how many streams a connection must allow. The API server has one for each resource that it watches,
// custom ones included, and one for each request (etcdconn).
const minStreams = 1000

// Refused are the flags that Kubelith sets itself or does not use.
func Refused() args.Refused {
	r := args.Refused{
		"unsafe-no-fsync":   "every write is synced to disk",
		"force-new-cluster": "it would take effect at every start",
		"feature-gates":     "etcd's gates are not those of Kubernetes; none is needed",
		"max-snapshots":     "upstream is about to remove it",
	}
	for why, names := range map[string]string{
		"Kubelith sets it": "name data-dir wal-dir listen-client-urls advertise-client-urls listen-client-http-urls listen-peer-urls " +
			"initial-advertise-peer-urls initial-cluster initial-cluster-token enable-grpc-gateway",
		"there is one log for the whole process: use --log-level and --log-format": "logger log-outputs log-level log-format " +
			"enable-log-rotation log-rotation-config-json",
		"metrics of the whole process are served once, by the apiserver": "listen-metrics-urls enable-pprof",
		"clients use a unix socket, and Kubelith gives the servers certificates for each other": "cert-file key-file " +
			"client-cert-file client-key-file client-cert-auth client-crl-file client-cert-allowed-hostname " +
			"trusted-ca-file auto-tls peer-cert-file peer-key-file peer-client-cert-file peer-client-key-file peer-client-cert-auth peer-trusted-ca-file " +
			"peer-auto-tls peer-crl-file peer-cert-allowed-cn peer-cert-allowed-hostname peer-skip-client-san-verification self-signed-cert-validity " +
			"cipher-suites tls-min-version tls-max-version cors host-whitelist socket-reuse-port socket-reuse-address",
		"Kubelith forms the cluster: join servers with kubelith server --server": "discovery-endpoints discovery-token " +
			"discovery-dial-timeout discovery-request-timeout discovery-keepalive-time " +
			"discovery-keepalive-timeout discovery-insecure-transport discovery-insecure-skip-tls-verify discovery-cert discovery-key discovery-cacert " +
			"discovery-user discovery-password discovery-srv discovery-srv-name strict-reconfig-check raft-read-timeout raft-write-timeout max-learners",
		"the apiserver uses no users of etcd": "auth-token auth-token-ttl bcrypt-cost",
	} {
		for _, name := range strings.Fields(names) {
			r[name] = why
		}
	}
	return r
}
