package sdk

import (
	"encoding/json"
	"errors"
	"net"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

func storagePlugin() *Storage {
	return &Storage{
		Version:        "7",
		CSIDriver:      &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "one.example.com"}},
		StorageClasses: []*storagev1.StorageClass{{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "one.example.com"}},
		NodeLocal:      true,
		Node:           csi.UnimplementedNodeServer{},
	}
}

// TestStorageDescription: what a plugin declares, and what Configure makes of it, arrives as objects of the API.
func TestStorageDescription(t *testing.T) {
	s := storagePlugin()
	s.Configure = func(c Config) error {
		var settings struct {
			Tier string `json:"tier"`
		}
		if err := c.Decode(&settings); err != nil {
			return err
		}
		s.StorageClasses[0].Parameters = map[string]string{"tier": settings.Tier, "node": c.NodeName}
		return nil
	}
	d, err := s.describe(&pluginv1.DescribeRequest{NodeName: "n1", Config: []byte(`{"tier":"gold"}`)})
	if err != nil {
		t.Fatal(err)
	}
	var driver storagev1.CSIDriver
	var class storagev1.StorageClass
	if err := errors.Join(json.Unmarshal(d.GetStorage().GetCsiDriver(), &driver), json.Unmarshal(d.GetStorage().GetStorageClasses()[0], &class)); err != nil {
		t.Fatal(err)
	}
	if d.GetVersion() != "7" || !d.GetStorage().GetNodeLocal() || driver.Name != "one.example.com" || class.Name != "fast" ||
		class.Parameters["tier"] != "gold" || class.Parameters["node"] != "n1" {
		t.Errorf("%v: driver %s, class %s %v", d, driver.Name, class.Name, class.Parameters)
	}
	if _, err := s.describe(&pluginv1.DescribeRequest{Config: []byte(`{"teir":"gold"}`)}); err == nil {
		t.Error("a plugin that refuses its configuration describes itself")
	}
	if _, err := (&Storage{CSIDriver: s.CSIDriver}).describe(&pluginv1.DescribeRequest{}); err == nil {
		t.Error("a plugin without a Node service describes itself")
	}
}

// TestStorageServices: a plugin has the services that it gives, and an Identity that fits them.
func TestStorageServices(t *testing.T) {
	serve := func(s *Storage) *grpc.ClientConn {
		l, err := net.Listen("unix", t.TempDir()+"/s")
		if err != nil {
			t.Fatal(err)
		}
		server := newServer(nil)
		s.register(server)
		go server.Serve(l)
		t.Cleanup(server.Stop)
		conn, err := grpc.NewClient("unix:"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	conn := serve(storagePlugin())
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	if err != nil || info.GetName() != "one.example.com" || info.GetVendorVersion() != "7" {
		t.Errorf("%v, %v", info, err)
	}
	has, err := csi.NewIdentityClient(conn).GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
	if err != nil || len(has.GetCapabilities()) != 1 ||
		has.GetCapabilities()[0].GetService().GetType() != csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS {
		t.Errorf("without a Controller it has %v, %v", has, err)
	}
	_, err = csi.NewControllerClient(conn).ControllerGetCapabilities(t.Context(), &csi.ControllerGetCapabilitiesRequest{})
	if s := status.Convert(err); s.Code() != codes.Unimplemented || s.Message() != "unknown service csi.v1.Controller" {
		t.Errorf("without a Controller: %v", err)
	}

	s := storagePlugin()
	s.Controller, s.NodeLocal, s.Version = csi.UnimplementedControllerServer{}, false, ""
	conn = serve(s)
	has, err = csi.NewIdentityClient(conn).GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
	if err != nil || len(has.GetCapabilities()) != 1 || has.GetCapabilities()[0].GetService().GetType() != csi.PluginCapability_Service_CONTROLLER_SERVICE {
		t.Errorf("with a Controller it has %v, %v", has, err)
	}
	if info, err := csi.NewIdentityClient(conn).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{}); err != nil || info.GetVendorVersion() == "" {
		t.Errorf("without a version: %v, %v", info, err)
	}
	if r, err := csi.NewIdentityClient(conn).Probe(t.Context(), &csi.ProbeRequest{}); err != nil || !r.GetReady().GetValue() {
		t.Errorf("%v, %v", r, err)
	}
}
