package snapshot

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"kubelith.io/kubelith/components/controlplane/etcd"
)

// TestRestoreWithoutAlarms: a restored cluster has none of those that the former one had, whose members are gone.
func TestRestoreWithoutAlarms(t *testing.T) {
	s := server(t)
	former, err := etcd.Dial(s.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer former.Close()
	_, err = etcdserverpb.NewMaintenanceClient(former.ActiveConnection()).Alarm(t.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: 0x1f, Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	if err != nil {
		t.Fatal(err)
	}
	f, err := SaveFile(t.Context(), s, t.TempDir(), "test")
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	to := Target{DataDir: filepath.Join(t.TempDir(), "data"), Socket: filepath.Join(t.TempDir(), "etcd.sock"), NodeName: "second", Kubelith: "v1", Kubernetes: "v1.37.1"}
	if _, err := Restore(t.Context(), bytes.NewReader(content), nil, to); err != nil {
		t.Fatal(err)
	}
	member := etcd.Options{DataDir: filepath.Join(to.DataDir, "server/db"), Socket: to.Socket, Name: "second", Zap: zap.NewNop()}
	err = etcd.With(t.Context(), member, func(c *clientv3.Client) error {
		all, err := c.AlarmList(t.Context())
		if err == nil && len(all.Alarms) > 0 {
			t.Errorf("it has the alarms %v", all.Alarms)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if all, err := former.AlarmList(t.Context()); err != nil || len(all.Alarms) != 1 {
		t.Errorf("the alarms of the former one: %v, %v", all, err)
	}
}
