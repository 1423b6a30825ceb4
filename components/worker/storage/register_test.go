package storage

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"kubelith.io/kubelith/plugins/storage"
)

// TestRegister: the kubelet reads what it needs, and its refusal reaches the operator.
func TestRegister(t *testing.T) {
	root := t.TempDir()
	log, lines := logtest.NewNullLogger()
	r, err := register(root, driverName, log)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix:"+registrationSocket(root, driverName), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	kubelet := registerapi.NewRegistrationClient(conn)
	info, err := kubelet.GetInfo(t.Context(), &registerapi.InfoRequest{})
	if err != nil || info.GetType() != "CSIPlugin" || info.GetName() != driverName || info.GetEndpoint() != storage.Socket(root, driverName) ||
		!slices.Equal(info.GetSupportedVersions(), []string{"1.0.0"}) {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := kubelet.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{Error: "no room"}); err != nil {
		t.Error(err)
	}
	if e := lines.LastEntry(); e == nil || e.Level != logrus.WarnLevel || !strings.Contains(e.Message, "no room") {
		t.Errorf("the log says %v", e)
	}
	r.stop()
	if _, err := os.Stat(registrationSocket(root, driverName)); err != nil {
		t.Errorf("the registration ends with the process: %v", err)
	}
	theirs := filepath.Join(root, registrations, "other-reg.sock")
	if err := os.WriteFile(theirs, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := removeRegistrations(root); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Join(root, registrations))
	if err != nil || len(left) != 1 || left[0].Name() != "other-reg.sock" {
		t.Errorf("left are %v, %v: want only the other driver's", left, err)
	}
}

func TestFits(t *testing.T) {
	const root = "/var/lib/kubelet"
	longest := strings.Repeat("d", maxSocket-len(registrationSocket(root, "")))
	if err := fits(root, longest); err != nil {
		t.Error(err)
	}
	if err := fits(root, longest+"d"); err == nil || !strings.Contains(err.Error(), "at most 59 characters") {
		t.Errorf("one more: %v", err)
	}
}

// TestListen: the socket replaces what an earlier process left, is root's alone, and stays when the process ends.
func TestListen(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "a", "csi.sock")
	for range 2 {
		l, err := listen(socket)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(socket)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
		if c, err := net.Dial("unix", socket); err != nil {
			t.Error(err)
		} else {
			c.Close()
		}
		l.Close()
		if _, err := os.Stat(socket); err != nil {
			t.Errorf("after the end: %v", err)
		}
	}
}
