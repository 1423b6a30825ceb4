// Command array is a storage plugin as a disk array's would be: one for the cluster, whose volumes are attached to a
// node before they can be mounted there. Behind it are the built-in driver's volumes; what is attached where are files
// in <data>/attached.
package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/plugins/builtin/local"
	"kubelith.io/kubelith/plugins/sdk"
)

const name = "array.example.com"

func main() {
	d := &driver{Driver: local.New()}
	attach, policy := true, storagev1.FileFSGroupPolicy
	sdk.ServeStorage(sdk.Storage{
		Version: "1",
		CSIDriver: &storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       storagev1.CSIDriverSpec{AttachRequired: &attach, FSGroupPolicy: &policy},
		},
		StorageClasses: []*storagev1.StorageClass{{ObjectMeta: metav1.ObjectMeta{Name: "array"}, Provisioner: name}},
		Controller:     d,
		Node:           d,
		Configure: func(c sdk.Config) error {
			d.attached = filepath.Join(c.DataDir, "attached")
			if err := os.MkdirAll(d.attached, 0o700); err != nil {
				return err
			}
			return d.Open(c.NodeName, c.DataDir, local.Config{}, c.Log)
		},
	})
}

type driver struct {
	*local.Driver
	attached string // directory of a file for each volume that is attached: the node's id
}

// ControllerGetCapabilities implements csi.ControllerServer.
func (d *driver) ControllerGetCapabilities(ctx context.Context, r *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	all, err := d.Driver.ControllerGetCapabilities(ctx, r)
	if err == nil {
		all.Capabilities = append(all.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{
			Rpc: &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}}})
	}
	return all, err
}

// CreateVolume implements csi.ControllerServer.
func (d *driver) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	made, err := d.Driver.CreateVolume(ctx, r)
	if err == nil {
		made.Volume.AccessibleTopology = nil
	}
	return made, err
}

// ControllerPublishVolume implements csi.ControllerServer. The file "refuse" is an array without a free port.
func (d *driver) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if _, err := os.Stat(filepath.Join(d.attached, "refuse")); err == nil {
		return nil, status.Error(codes.ResourceExhausted, "no port of the array is free")
	}
	if err := os.WriteFile(filepath.Join(d.attached, r.GetVolumeId()), []byte(r.GetNodeId()), 0o600); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"port": "7"}}, nil
}

// ControllerUnpublishVolume implements csi.ControllerServer.
func (d *driver) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if err := os.Remove(filepath.Join(d.attached, r.GetVolumeId())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// NodeGetInfo implements csi.NodeServer.
func (d *driver) NodeGetInfo(ctx context.Context, r *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	info, err := d.Driver.NodeGetInfo(ctx, r)
	if err == nil {
		info.NodeId, info.AccessibleTopology = "initiator-of-"+info.NodeId, nil
	}
	return info, err
}

// NodeStageVolume implements csi.NodeServer: without the port from ControllerPublishVolume there is nothing to mount.
func (d *driver) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if _, err := os.Stat(filepath.Join(d.attached, r.GetVolumeId())); err != nil || r.GetPublishContext()["port"] != "7" {
		return nil, status.Error(codes.FailedPrecondition, "the volume is not attached")
	}
	return d.Driver.NodeStageVolume(ctx, r)
}
