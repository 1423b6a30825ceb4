package etcdclient

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/client/pkg/v3/logutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func TestDefaultLogger(t *testing.T) {
	l, err := logutil.CreateDefaultZapLogger(zapcore.DebugLevel)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	log.SetLevel(logrus.DebugLevel)
	log.SetFormatter(&logrus.TextFormatter{DisableTimestamp: true, DisableColors: true})
	LogTo(log.WithField("component", "apiserver"))
	l = l.Named("etcd-client")
	l.Debug("a")
	l.Warn("b", zap.Error(errors.New("no")), zap.Int("attempt", 2))
	l.Warn("gone", zap.Error(errors.New("rpc error: code = Canceled desc = context canceled")))
	l.DPanic("c")
	want := "level=debug msg=a component=apiserver logger=etcd-client\n" +
		"level=warning msg=b attempt=2 component=apiserver error=no logger=etcd-client\n" +
		"level=debug msg=gone component=apiserver error=\"rpc error: code = Canceled desc = context canceled\" logger=etcd-client\n" +
		"level=error msg=c component=apiserver logger=etcd-client\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

// Its init has to run before that of the factory: see the package's comment.
func TestImportsNothingOfKubernetes(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Skipf("go list: %v", err)
	}
	for _, path := range strings.Fields(string(out)) {
		if strings.HasPrefix(path, "k8s.io/") || strings.HasPrefix(path, "sigs.k8s.io/") {
			t.Errorf("imports %s", path)
		}
	}
}
