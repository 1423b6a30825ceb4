package apiserver

import (
	"bytes"
	"strings"
	"testing"
	_ "unsafe" // for go:linkname

	"go.uber.org/zap"
	_ "k8s.io/apiserver/pkg/storage/storagebackend/factory" // has the variable

	"kubelith.io/kubelith/base/logging"
)

// etcd3ClientLogger is upstream's; nothing exported shows it.
//
//go:linkname etcd3ClientLogger k8s.io/apiserver/pkg/storage/storagebackend/factory.etcd3ClientLogger
var etcd3ClientLogger *zap.Logger

// Upstream creates its logger after base/logging/etcdclient has changed the default that it derives it from.
func TestEtcdClientLogsToUs(t *testing.T) {
	var out bytes.Buffer
	if _, err := logging.Setup(logging.Options{Format: "text", Level: "info", Out: &out}); err != nil {
		t.Fatal(err)
	}
	etcd3ClientLogger.Warn("retrying of unary invoker failed", zap.Int("attempt", 0))
	if got := out.String(); !strings.Contains(got, "component=apiserver retrying of unary invoker failed attempt=0 logger=etcd-client") {
		t.Errorf("the log is %q", got)
	}
}
