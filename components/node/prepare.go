package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	encryptionconfigcontroller "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/transport"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/kubernetes/pkg/features"

	"kubelith.io/kubelith/base/args"
	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/profile"
	"kubelith.io/kubelith/components/controlplane/carotation"
	"kubelith.io/kubelith/components/controlplane/servers"
	"kubelith.io/kubelith/components/node/progress"
	"kubelith.io/kubelith/components/worker/dns"
	"kubelith.io/kubelith/components/worker/join"
	componentstatus "kubelith.io/kubelith/components/worker/status"
	"kubelith.io/kubelith/host/preflight"
	"kubelith.io/kubelith/plugins/credentials"
	"kubelith.io/kubelith/runtime/payload"
	"kubelith.io/kubelith/trace/record"
)

const (
	// thirdPartyCNI is where providers install their CNI programs.
	thirdPartyCNI = "/opt/cni/bin"
	// registriesDir has <host>/hosts.toml files, in containerd's format.
	registriesDir = "/etc/kubelith/registries.d"
	// reloadKeysEvery is how often the apiserver looks whether the keys of Secrets have changed; upstream waits a
	// minute.
	reloadKeysEvery = 2 * time.Second
)

// machine is what was found or created on this machine before any component.
type machine struct {
	dir              *datadir.Dir
	checks           []preflight.Result
	pki              *pki.Bundle // of a server
	encryptionConfig string
	binDir           string
	resolvConf       string
	release          string
	args             upstreamArgs
	pluginUsers      credentials.Issuer
	status           *componentstatus.Observer // the state of the components
	record           *record.Store             // the flight recorder; nil: switched off, or a plan
	membership       *membership               // of a server among others; nil in a plan
	certificates     liveCertificates          // renewed while the server runs
	ending           chan struct{}             // closed when the components begin to stop
}

// upstreamArgs are the user's arguments per component, without those that apply to the whole process.
type upstreamArgs struct {
	etcd, apiserver, controllerManager, scheduler, kubelet, proxy []string
}

// Close releases the data directory.
func (h *machine) Close() { h.dir.Close() }

// prepare does everything that must be done before a component is built. A refused start removes what it created and
// leaves the machine as it was.
func prepare(ctx context.Context, cfg *config.Server, others *membership, release string) (_ *machine, err error) {
	h := &machine{
		resolvConf: dns.HostResolvConf(),
		release:    release,
		status:     componentstatus.NewObserver(),
		ending:     make(chan struct{}),
		membership: others,
	}
	var planned []lifecycle.Component
	if h.args, planned, err = plan(cfg); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 && cfg.NeedsRoot() {
		return nil, errors.New("kubelith server needs root: run it with sudo, or without a node (--disable kubelet,containerd,proxy)")
	}
	if join.IsAgent(cfg.DataDir) {
		return nil, fmt.Errorf("%s is the data directory of an agent: start it with kubelith agent, "+
			"or use another --data-dir for a server", cfg.DataDir)
	}
	if err := datadir.CheckCluster(cfg.DataDir); err != nil {
		return nil, err
	}
	if err := datadir.CheckSettings(cfg.DataDir, fixedSettings(cfg)); err != nil {
		return nil, err
	}
	attempt := begin(&cfg.Node)
	defer func() {
		if err != nil {
			attempt.takeBack()
		}
	}()
	h.checks = pluginResults(cfg)
	// The directories are locked before the admin kubeconfig is written: a server that holds the run directory may own
	// it.
	if err := h.settle(ctx, attempt, &cfg.Node, release, checkOptions(cfg, planned)); err != nil {
		return nil, err
	}
	if err := checkVirtualAddress(ctx, cfg, others); err != nil {
		return nil, err
	}
	h.record = newRecord(&cfg.Node)
	attempt.onRefusal(forget(filepath.Join(cfg.DataDir, "server"), cfg.WriteKubeconfig))
	attempt.making(tlsDir(cfg))
	attempt.making(filepath.Dir(encryptionConfig(cfg)))
	attempt.making(profileDir(cfg))
	attempt.onRefusal(forget(servers.File(cfg.DataDir)))
	if err := others.join(ctx, cfg); err != nil {
		return nil, err
	}
	if err := h.credentials(cfg); err != nil {
		return nil, err
	}
	if err := profile.Write(cfg.Profile, profileDir(cfg)); err != nil {
		return nil, err
	}
	// A rotation of keys waits for each server to load its file, three times (components/controlplane/encryption).
	encryptionconfigcontroller.EncryptionConfigFileChangePollDuration = reloadKeysEvery
	// So does a rotation of CAs for clients, such as that of the API server for kubelets, to show their new
	// certificate.
	transport.CertCallbackRefreshDuration = carotation.Reload
	if life := testedLife(); life > 0 { // as upstream's integration tests do
		transport.CertCallbackRefreshDuration = life / 20
	}
	return h, h.dir.KeepSettings(fixedSettings(cfg))
}

// fixedSettings are the settings that cannot change in the life of a cluster.
func fixedSettings(cfg *config.Server) datadir.Settings {
	return datadir.Settings{
		NodeName: cfg.NodeName, ClusterCIDR: cfg.ClusterCIDR, ServiceCIDR: cfg.ServiceCIDR, ClusterDomain: cfg.ClusterDomain,
	}
}

// unpack extracts the programs of the payload on a node that runs containers: only those need them.
func (h *machine) unpack(cfg *config.Node) (err error) {
	if cfg.Disabled("containerd") {
		return nil
	}
	if h.binDir, err = payload.Unpack(cfg.DataDir); err != nil {
		return err
	}
	// The shim and the CNI programs are found by name, ours first.
	return os.Setenv("PATH", h.binDir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// hold locks the other directories of the node, so that reset does not remove them while it runs.
func (h *machine) hold(cfg *config.Node) error {
	if cfg.Disabled("kubelet") {
		return h.dir.Hold(cfg.RunDir, "")
	}
	return h.dir.Hold(cfg.RunDir, cfg.KubeletRootDir)
}

// report logs what prepare noticed, and shows it to the user. It is called when nothing can be refused any more, so
// that a refusal is the only line that a user sees.
func (h *machine) report(log *logrus.Logger, tracker *progress.Tracker) {
	for _, r := range h.checks {
		if r.Status == preflight.Warn {
			logging.Component(log, "check").Warn(r.Problem())
			tracker.Printf("warning: %s\n", r.Problem())
		}
	}
	if h.pki == nil { // on an agent
		return
	}
	for _, path := range h.pki.Exposed {
		log.WithField("component", "pki").Warnf("other users could read %s: its mode is corrected, but they may have a copy of it", path)
	}
	for _, name := range h.pki.Changed {
		logging.Component(log, "pki").Infof("created %s", name)
	}
}

// profileDir holds the files of the hardening profile and the audit log.
func profileDir(cfg *config.Server) string { return filepath.Join(cfg.DataDir, "server", "profile") }

// applyGates sets the feature gates of the process and returns the other arguments of a server.
func applyGates(cfg *config.Server) (upstreamArgs, error) {
	defaults := profile.Of(cfg.Profile, profileDir(cfg))
	rest, err := setGates(
		profile.With(defaults.APIServer, cfg.APIServerArgs),
		profile.With(defaults.ControllerManager, cfg.ControllerManagerArgs),
		cfg.SchedulerArgs,
		profile.With(defaults.Kubelet, cfg.KubeletArgs),
		cfg.ProxyArgs,
	)
	if err != nil {
		return upstreamArgs{}, err
	}
	return upstreamArgs{cfg.EtcdArgs, rest[0], rest[1], rest[2], rest[3], rest[4]}, nil
}

// setGates sets the feature gates of the process, once and before any component is built, and returns the other
// arguments of each list.
func setGates(arguments ...[]string) ([][]string, error) {
	rest, global, err := args.Gates(arguments...)
	if err != nil {
		return nil, err
	}
	registry := compatibility.DefaultComponentGlobalsRegistry
	if registry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent) == nil {
		err := registry.Register(basecompatibility.DefaultKubeComponent, compatibility.DefaultBuildEffectiveVersion(),
			utilfeature.DefaultMutableFeatureGate)
		if err != nil {
			return nil, err
		}
	}
	// The kubelet checks a pod as soon as a container of it has ended (docs/adr/041-events-of-containerd.md).
	if gates := utilfeature.DefaultMutableFeatureGate; !gates.GetAll()[features.EventedPLEG].Default {
		if err := gates.OverrideDefault(features.EventedPLEG, true); err != nil {
			return nil, err
		}
	}
	fs := pflag.NewFlagSet("process", pflag.ContinueOnError)
	registry.AddFlags(fs)
	if err := args.KnownGates(global, utilfeature.DefaultMutableFeatureGate.GetAll()); err != nil {
		return nil, err
	}
	if err := args.ApplyTo("argument", fs, nil, global); err != nil {
		return nil, err
	}
	if err := registry.Set(); err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(global, " "), err)
	}
	// kubernetes_feature_enabled and similar metrics, which upstream's commands set up.
	utilfeature.DefaultMutableFeatureGate.AddMetrics()
	registry.AddMetrics()
	return rest, nil
}
