package kubelet

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	internalapi "k8s.io/cri-api/pkg/apis"
)

// TestStopBeforeRuntime: a stop while the kubelet connects to the container runtime is no failure.
func TestStopBeforeRuntime(t *testing.T) {
	dir := t.TempDir()
	silent, err := net.Listen("unix", filepath.Join(dir, "silent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s, err := New(Options{
		NodeName: "one", RootDir: filepath.Join(dir, "root"), StaticPodDir: filepath.Join(dir, "pods"), CertDir: dir, CgroupDriver: "cgroupfs",
		CRISocket: silent.Addr().String(), Client: &rest.Config{Host: "https://127.0.0.1:1"},
		Runtime: func(socket internalapi.RuntimeService) internalapi.RuntimeService { return socket },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, stop)
	if err := s.Run(ctx, func() { t.Error("ready without a runtime") }); err != nil {
		t.Errorf("a stop is no failure, got %v", err)
	}
}
