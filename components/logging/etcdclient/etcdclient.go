// Package etcdclient leads what the apiserver's etcd clients log to logrus.
//
// Upstream makes their logger in an init function (k8s.io/apiserver/pkg/storage/storagebackend/factory) from etcd's
// default configuration, which writes JSON to stderr, and has no setting for it. So that default is changed here, in
// an init function that runs before. Go's order is fixed (Go specification, "Program initialization"): the first
// package by import path whose imports are all initialised is next. This one imports little and nothing that sorts
// after it; upstream's needs sigs.k8s.io, which does. It stays that way as long as nothing of Kubernetes is imported here.
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

// scheme names our sink to zap.
const scheme = "kubelith"

// target receives the lines; until it is set they go to stderr, as upstream's would.
var target atomic.Pointer[logrus.Entry]

func init() {
	if err := zap.RegisterSink(scheme, func(*url.URL) (zap.Sink, error) { return sink{}, nil }); err != nil {
		panic(err) // the name is taken: a mistake in this program
	}
	logutil.DefaultZapLoggerConfig.OutputPaths = []string{scheme + ":etcd-client"}
}

// LogTo leads the lines to an entry from now on.
func LogTo(entry *logrus.Entry) { target.Store(entry) }

// sink receives a line of JSON per call.
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
	// A request that nobody waits for any more: dozens of them when a custom resource is defined.
	if text, _ := fields["error"].(string); level == logrus.WarnLevel && strings.Contains(text, "context canceled") {
		level = logrus.DebugLevel
	}
	for _, key := range []string{"msg", "level", "ts", "caller", "stacktrace"} {
		delete(fields, key)
	}
	entry.WithFields(fields).Log(max(level, logrus.ErrorLevel), message) // ending the process is left to zap
	return len(line), nil
}

// Sync implements zapcore.WriteSyncer.
func (sink) Sync() error { return nil }

// Close implements io.Closer.
func (sink) Close() error { return nil }
