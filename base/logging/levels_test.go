package logging

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"
)

func TestLevelsOfComponents(t *testing.T) {
	log, lines := capture(t, "text", "warn,kubelet=debug,etcd=error,containerd=info")
	var hooked []string
	log.AddHook(hook(func(e *logrus.Entry) { hooked = append(hooked, e.Message) }))
	for _, name := range []string{"kubelet", "etcd", "dns"} {
		e := Component(log, name)
		e.Error(name + " error")
		e.Warn(name + " warn")
		e.Info(name + " info")
		e.Debug(name + " debug")
		l := klog.FromContext(WithComponent(context.Background(), name))
		l.Error(nil, name+" klog error")
		l.Info(name + " klog info")
		l.V(4).Info(name + " klog debug")
		l.V(5).Info(name + " klog trace")
	}
	z := Zap(Component(log, "etcd"))
	z.Warn("zap warn")
	z.Error("zap error")
	logrus.Info("containerd info")
	logrus.Debug("containerd debug")
	klog.Warning("past the context, warn")
	klog.Info("past the context, info")
	klog.V(4).Infof("past the context, debug")
	var got []string
	for _, l := range lines() {
		_, message, _ := strings.Cut(l, "component=")
		_, message, _ = strings.Cut(message, " ")
		got = append(got, message)
	}
	want := []string{
		"kubelet error", "kubelet warn", "kubelet info", "kubelet debug", "kubelet klog error", "kubelet klog info", "kubelet klog debug",
		"etcd error", "etcd klog error", "dns error", "dns warn", "dns klog error", "zap error", "containerd info", "past the context, warn",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, message := range []string{"kubelet error", "etcd klog error", "dns error"} {
		if !slices.Contains(hooked, message) {
			t.Errorf("a hook misses %q: %q", message, hooked)
		}
	}
}

// Upstream asks several hundred times per pod.
func TestUnwrittenLinesAllocateNothing(t *testing.T) {
	capture(t, "text", "info,etcd=error")
	l := klog.FromContext(WithComponent(context.Background(), "kubelet")).GetSink()
	if n := testing.AllocsPerRun(100, func() { l.Enabled(5) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

type hook func(*logrus.Entry)

func (h hook) Levels() []logrus.Level     { return []logrus.Level{logrus.ErrorLevel} }
func (h hook) Fire(e *logrus.Entry) error { h(e); return nil }

func TestParseLevels(t *testing.T) {
	for text, want := range map[string]string{
		"info":                    "info info debug",
		"kubelet=trace":           "info trace trace",
		"error,kubelet=warn":      "error warn debug",
		"kubelet=debug,warn":      "warn debug debug",
		"loud":                    "",
		"info,kubelet=loud":       "",
		"info,kubelet=":           "",
		"info,":                   "",
		"":                        "",
		"panic":                   "",
		"info,kubelet=debug=warn": "",
	} {
		l, err := parseLevels(text)
		if err != nil {
			if want != "" || !strings.Contains(err.Error(), "use error, warn") {
				t.Errorf("%q: error %v", text, err)
			}
			continue
		}
		got := levelName(l.others) + " " + levelName(l.level("kubelet")) + " "
		if l.of["x"] = logrus.DebugLevel; want == "" || got+levelName(l.most()) != want {
			t.Errorf("%q: got %s, want %s", text, got+levelName(l.most()), want)
		}
	}
}

func TestComponentOf(t *testing.T) {
	for function, want := range map[string]string{
		"k8s.io/kubernetes/pkg/kubelet/cm.(*containerManagerImpl).Start":                        "kubelet",
		"k8s.io/kubernetes/pkg/controlplane/reconcilers.(*leaseEndpointReconciler).doReconcile": "apiserver",
		"k8s.io/kubernetes/pkg/controller/job.(*Controller).Run":                                "controller-manager",
		"github.com/flannel-io/flannel/pkg/backend/vxlan.newVXLANDevice":                        "network",
		"kubelith.io/kubelith/components/cluster/controllermanager.(*Server).Run":               "controller-manager",
		"kubelith.io/kubelith/components/cluster/servicelb.New":                                 "servicelb",
		"kubelith.io/kubelith/base/logging/etcdclient.sink.Write":                               "",
		"kubelith.io/kubelith/components/node.Serve":                                            "",
		"k8s.io/klog/v2.Infof":                          "",
		"k8s.io/client-go/tools/cache.(*Reflector).Run": "",
		"main.main": "",
	} {
		if got := componentOf(function); got != want {
			t.Errorf("%s: got %q, want %q", function, got, want)
		}
	}
}
