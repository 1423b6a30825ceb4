// Package etcdclient routes the log of the apiserver's etcd clients to logrus.
//
// Upstream creates their logger in an init function (k8s.io/apiserver/pkg/storage/storagebackend/factory) from etcd's
// default configuration, which writes JSON to stderr, and has no setting for it. So we change that default here, in an
// init function that runs before. Go's order is fixed (Go specification, "Program initialization"): the first package
// by import path whose imports are all initialised is next. This one imports little and nothing that sorts after it;
// upstream's needs sigs.k8s.io, which does. That holds as long as this package imports nothing of Kubernetes.
package etcdclient

import (
	"encoding/json"
	"net/url"
	"os"
	"strings"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/client/pkg/v3/logutil"
	"go.uber.org/zap"
)

// scheme is our sink's name for zap.
const scheme = "kubelith"

// target receives the lines; until it is set they go to stderr, as upstream's would.
var target atomic.Pointer[logrus.Entry]

func init() {
	if err := zap.RegisterSink(scheme, func(*url.URL) (zap.Sink, error) { return sink{}, nil }); err != nil {
		panic(err) // the name is taken: a bug in this program
	}
	logutil.DefaultZapLoggerConfig.OutputPaths = []string{scheme + ":etcd-client"}
}

// LogTo sends all further lines to an entry.
func LogTo(entry *logrus.Entry) { target.Store(entry) }

// sink receives one line of JSON per call.
type sink struct{}

var _ zap.Sink = sink{}

// Write implements io.Writer.
func (sink) Write(line []byte) (int, error) {
	entry := target.Load()
	fields := logrus.Fields{}
	if entry == nil || json.Unmarshal(line, &fields) != nil {
		return os.Stderr.Write(line)
	}
	message, _ := fields["msg"].(string)
	name, _ := fields["level"].(string)
	level, err := logrus.ParseLevel(name)
	if err != nil {
		level = logrus.ErrorLevel // zap's dpanic
	}
	// An abandoned request: defining a custom resource causes dozens.
	if text, _ := fields["error"].(string); level == logrus.WarnLevel && strings.Contains(text, "context canceled") {
		level = logrus.DebugLevel
	}
	for _, key := range []string{"msg", "level", "ts", "caller", "stacktrace"} {
		delete(fields, key)
	}
	entry.WithFields(fields).Log(max(level, logrus.ErrorLevel), message) // zap ends the process
	return len(line), nil
}

// Sync implements zapcore.WriteSyncer.
func (sink) Sync() error { return nil }

// Close implements io.Closer.
func (sink) Close() error { return nil }
