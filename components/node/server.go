package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"kubelith.io/kubelith/components/apiserver"
	"kubelith.io/kubelith/components/client"
	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/controllermanager"
	"kubelith.io/kubelith/components/dns"
	"kubelith.io/kubelith/components/etcd"
	"kubelith.io/kubelith/components/kubelet"
	"kubelith.io/kubelith/components/lifecycle"
	"kubelith.io/kubelith/components/logging"
	"kubelith.io/kubelith/components/proxy"
	"kubelith.io/kubelith/components/scheduler"
	"kubelith.io/kubelith/runtime/cgroups"
	"kubelith.io/kubelith/runtime/cni"
	"kubelith.io/kubelith/runtime/containerd"
	"kubelith.io/kubelith/runtime/images"
)

// stopTimeout bounds an ordered stop, in all.
const stopTimeout = 25 * time.Second

// Serve runs a server until ctx is cancelled or a component fails. release is the version of Kubelith, noted in the
// data directory.
func Serve(ctx context.Context, cfg *config.Server, release string, out Output) error {
	systemd := captureSystemd()
	started := tuneMemory(ctx)
	var file logFile
	if out.LogFile != "" {
		out.Log = &file
	}
	log, err := logging.Setup(logging.Options{Format: cfg.LogFormat, Level: cfg.LogLevel, Out: out.Log})
	if err != nil {
		return err
	}
	machine, err := prepare(ctx, cfg, release)
	if err != nil {
		return err
	}
	defer machine.Close()

	components, err := server(cfg, machine, log)
	if err != nil {
		return err
	}
	progress := newProgress(out, components, cfg.WriteKubeconfig)
	if out.LogFile != "" {
		if err := file.open(out.LogFile); err != nil {
			return err
		}
		progress.printf("the log is %s; ctrl-c stops the server, and pods go on running\n", out.LogFile)
	}
	machine.report(log, progress)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	last := &lastError{}
	log.AddHook(last)
	endInOrder(end, last)
	group, err := lifecycle.NewGroup(lifecycle.Options{
		Log: logging.Component(log, "kubelith"),
		Observe: func(e lifecycle.Event) {
			progress.observe(e)
			systemd.observe(e, progress.allReady())
			if progress.allReady() {
				started()
			}
		},
		StopTimeout: stopTimeout,
	}, components...)
	if err != nil {
		return err
	}
	renewCertificates(ctx, renewEvery, func() ([]string, error) {
		bundle, err := certificates(cfg)
		if err != nil {
			return nil, err
		}
		return bundle.Changed, nil
	}, logging.Component(log, "pki"))
	err = group.Run(ctx)
	var gaveUp upstreamExit
	if errors.As(context.Cause(ctx), &gaveUp) {
		if err != nil { // a consequence
			logging.Component(log, "kubelith").WithError(err).Warn("failed as well")
		}
		return gaveUp
	}
	return err
}

// upstreamExit is why a server stops that an upstream component wanted to end: the error that it logged.
type upstreamExit string

func (e upstreamExit) Error() string {
	return "an upstream component gave up: " + string(e) + ": the log has what came before"
}

// endInOrder turns the exit that upstream components ask klog for into an
// ordered stop: etcd and the containers' daemon are in the same process. They log why just before.
func endInOrder(end context.CancelCauseFunc, why *lastError) {
	klog.OsExit = func(int) {
		end(upstreamExit(why.text()))
		runtime.Goexit() // as os.Exit, it does not return; the component's Run ends, so that the stop need not wait for it
	}
}

// lastError remembers the last error of the log in one line.
type lastError struct{ last atomic.Value }

// Levels implements logrus.Hook.
func (*lastError) Levels() []logrus.Level {
	return []logrus.Level{logrus.PanicLevel, logrus.FatalLevel, logrus.ErrorLevel}
}

// Fire implements logrus.Hook.
func (l *lastError) Fire(e *logrus.Entry) error {
	text, _, _ := strings.Cut(strings.TrimSpace(e.Message), "\n") // a stack may follow
	for _, key := range []string{logrus.ErrorKey, "err"} {        // klog's key is the second
		if err, ok := e.Data[key]; ok {
			text += ": " + strings.ReplaceAll(fmt.Sprint(err), "\n", " ")
		}
	}
	if component, ok := e.Data["component"]; ok {
		text = fmt.Sprintf("%v: %s", component, text)
	}
	l.last.Store(text)
	return nil
}

func (l *lastError) text() string {
	text, _ := l.last.Load().(string)
	return text
}

// server builds all components of a server, in the order in which they start. It touches nothing on the host.
func server(cfg *config.Server, machine *machine, log *logrus.Logger) ([]lifecycle.Component, error) {
	logFor := func(component string) logrus.FieldLogger { return logging.Component(log, component) }
	inProcess := client.New(cfg.URL(), logFor("client"))
	nodeIPs := cfg.NodeIPs()
	var b builder

	etcdSocket := filepath.Join(cfg.RunDir, "etcd.sock")
	b.add(etcd.New(etcd.Options{
		DataDir: filepath.Join(cfg.DataDir, "server", "db"),
		Socket:  etcdSocket,
		Name:    cfg.NodeName,
		Args:    machine.args.etcd,
		Zap:     logging.Zap(logging.Component(log, "etcd")),
	}))

	api, err := apiserver.New(apiserver.Options{
		BindAddress:      cfg.BindAddress,
		Port:             cfg.HTTPSPort,
		AdvertiseAddress: cfg.AdvertiseAddress,
		ServiceCIDRs:     cfg.ServiceCIDR,
		ClusterDomain:    cfg.ClusterDomain,
		EtcdEndpoint:     etcd.Endpoint(etcdSocket),
		EncryptionConfig: machine.encryptionConfig,
		PKI:              machine.pki,
		Args:             machine.args.apiserver,
		Client:           inProcess,
	})
	b.add(api, err)
	b.add(apiserver.Health{Client: inProcess}, nil)

	b.add(controllermanager.New(controllermanager.Options{
		ClusterCIDRs: cfg.ClusterCIDR,
		ServiceCIDRs: cfg.ServiceCIDR,
		PKI:          machine.pki,
		Args:         machine.args.controllerManager,
		Client:       inProcess,
		Informers:    api.Informers,
		Log:          logFor("controller-manager"),
	}))

	b.add(scheduler.New(scheduler.Options{
		Args:      machine.args.scheduler,
		Client:    inProcess,
		Informers: api.Informers,
	}))

	socket := filepath.Join(cfg.RunDir, "containerd", "containerd.sock")
	cniConfDir := filepath.Join(cfg.RunDir, "cni", "net.d")
	b.add(containerd.New(containerd.Options{
		Root:          filepath.Join(cfg.DataDir, "agent", "containerd"),
		State:         filepath.Join(cfg.RunDir, "containerd"),
		Socket:        socket,
		BinDir:        machine.binDir,
		CNIConfDir:    cniConfDir,
		CNIBinDirs:    []string{thirdPartyCNI, machine.binDir},
		RegistriesDir: registriesDir,
		SandboxImage:  images.PauseRef,
		Debug:         log.IsLevelEnabled(logrus.DebugLevel),
		Log:           logFor("containerd"),
	}), nil)

	b.add(images.New(images.Options{
		ContainerdAddress: socket,
		Snapshotter:       func() string { return containerd.Snapshotter(filepath.Join(cfg.DataDir, "agent", "containerd")) },
		ArchiveDir:        filepath.Join(cfg.DataDir, "agent", "images"),
		Log:               logFor("images"),
	}), nil)

	b.add(cni.New(cni.Options{
		Mode:              cni.Mode(cfg.Network),
		ConfDir:           cniConfDir,
		HostConfDir:       "/etc/cni/net.d",
		DataDir:           filepath.Join(cfg.DataDir, "agent", "cni"),
		ClusterCIDRs:      cfg.ClusterCIDR,
		ContainerdAddress: socket,
		Client:            asNode(inProcess, cfg),
		NodeName:          cfg.NodeName,
		Log:               logFor("network"),
	}), nil)

	b.add(kubelet.New(kubelet.Options{
		RootDir:       cfg.KubeletRootDir,
		StaticPodDir:  filepath.Join(cfg.DataDir, "agent", "static-pods"),
		NodeName:      cfg.NodeName,
		NodeIPs:       nodeIPs,
		Labels:        cfg.NodeLabels,
		Taints:        cfg.NodeTaints,
		ClusterDNS:    cfg.ClusterDNS(),
		ClusterDomain: cfg.ClusterDomain,
		CRISocket:     socket,
		CgroupDriver:  cgroups.DetectCgroupDriver(),
		ResolvConf:    machine.resolvConf,
		PKI:           machine.pki,
		Args:          machine.args.kubelet,
		Client:        asNode(inProcess, cfg),
		Log:           logFor("kubelet"),
	}))

	b.add(proxy.New(proxy.Options{
		Client:       inProcess.Config(client.Proxy),
		NodeName:     cfg.NodeName,
		NodeIPs:      nodeIPs,
		ClusterCIDRs: cfg.ClusterCIDR,
		Args:         machine.args.proxy,
		Log:          logFor("proxy"),
	}))

	b.add(dns.New(dns.Options{
		Client:        inProcess.Config(client.DNS),
		NodeName:      cfg.NodeName,
		NodeIPs:       nodeIPs,
		ClusterDNS:    cfg.ClusterDNS(),
		ClusterDomain: cfg.ClusterDomain,
		ClusterCIDRs:  cfg.ClusterCIDR,
		ResolvConf:    machine.resolvConf,
		Publish:       api.Informers,
		Log:           logFor("dns"),
	}), nil)

	return b.enabled(cfg.Disable)
}

func asNode(c *client.InProcess, cfg *config.Server) *rest.Config { return c.NodeConfig(cfg.NodeName) }
