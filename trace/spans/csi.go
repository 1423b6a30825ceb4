package spans

import (
	"context"
	"path"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"kubelith.io/kubelith/trace/record"
)

// maxStaged is how many calls for a volume wait for the pod that they were made for.
const maxStaged = 8

// maxVolumes is for how many volumes calls wait.
const maxVolumes = 1000

// volumes is what calls to CSI drivers say only once: a volume's ID stands for the claim that it was created for, and
// the pod that used it last. Its calls NodeStageVolume name no pod, and wait for the one whose NodePublishVolume
// follows.
type volumes struct {
	claims map[string]record.Ref
	pods   map[string]record.Ref
	staged map[string][]record.Record
	// forwarded are the drivers whose calls go through this process.
	forwarded map[string]bool
}

func newVolumes() volumes {
	return volumes{claims: map[string]record.Ref{}, pods: map[string]record.Ref{}, staged: map[string][]record.Record{}, forwarded: map[string]bool{}}
}

// stage keeps a record until it is known for which pod it was.
func (v *volumes) stage(volume string, r record.Record) {
	if len(v.staged) >= maxVolumes { // no pod came for them
		clear(v.staged)
	}
	if waiting := v.staged[volume]; len(waiting) < maxStaged {
		v.staged[volume] = append(waiting, r)
	}
}

// CSI returns a handler for the gRPC server behind which a CSI driver is, whose messages are a *mem.BufferSlice each.
func (s *Source) CSI(driver string) stats.Handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.volumes.forwarded[driver] = true
	return csiHandler{s, driver}
}

type csiHandler struct {
	source *Source
	driver string
}

type csiKey struct{}

// csiCall is a call to a driver that concerns a volume.
type csiCall struct {
	method string
	start  time.Time
	volume string // its ID, after the driver
	object record.Ref
	name   string // of the volume, as the record has it
}

// TagConn implements stats.Handler.
func (csiHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (csiHandler) HandleConn(context.Context, stats.ConnStats) {}

// TagRPC implements stats.Handler.
func (h csiHandler) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	switch method := path.Base(info.FullMethodName); method {
	case "CreateVolume", "ControllerPublishVolume", "ControllerUnpublishVolume", "ControllerExpandVolume", "DeleteVolume",
		"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "NodeExpandVolume":
		return context.WithValue(ctx, csiKey{}, &csiCall{method: method})
	}
	return ctx
}

// HandleRPC implements stats.Handler.
func (h csiHandler) HandleRPC(ctx context.Context, rs stats.RPCStats) {
	c, _ := ctx.Value(csiKey{}).(*csiCall)
	if c == nil {
		return
	}
	switch rs := rs.(type) {
	case *stats.Begin:
		c.start = rs.BeginTime
	case *stats.InPayload:
		if message, ok := rs.Payload.(*mem.BufferSlice); ok {
			h.request(c, message.Materialize())
		}
	case *stats.OutPayload:
		if message, ok := rs.Payload.(*mem.BufferSlice); ok && c.method == "CreateVolume" {
			h.created(c, message.Materialize())
		}
	case *stats.End:
		h.end(c, rs.EndTime, rs.Error)
	}
}

// request notes the volume, and whose it is. A request may have secrets: nothing else is kept.
func (h csiHandler) request(c *csiCall, message []byte) {
	var id, target string
	switch c.method {
	case "CreateVolume":
		var m csi.CreateVolumeRequest
		if proto.Unmarshal(message, &m) == nil {
			c.name, c.object = m.GetName(), claimOf(m.GetName(), m.GetParameters())
		}
		return
	case "NodePublishVolume":
		var m csi.NodePublishVolumeRequest
		if proto.Unmarshal(message, &m) == nil {
			id, target = m.GetVolumeId(), m.GetTargetPath()
		}
	case "NodeUnpublishVolume":
		var m csi.NodeUnpublishVolumeRequest
		if proto.Unmarshal(message, &m) == nil {
			id, target = m.GetVolumeId(), m.GetTargetPath()
		}
	case "NodeExpandVolume":
		var m csi.NodeExpandVolumeRequest
		if proto.Unmarshal(message, &m) == nil {
			id, target = m.GetVolumeId(), m.GetVolumePath()
		}
	default:
		id = volumeID(message)
	}
	c.volume, c.name = h.driver+"\x00"+id, id
	h.source.mu.Lock()
	defer h.source.mu.Unlock()
	v := &h.source.volumes
	if uid, volume := podOfPath(target); uid != "" {
		c.object, c.name = h.source.pod(uid), volume
		if c.method == "NodePublishVolume" {
			v.pods[c.volume] = c.object
		}
		return
	}
	switch c.method {
	case "NodeStageVolume": // which pod it is for is known later
	case "NodeUnstageVolume", "NodeExpandVolume":
		c.object = v.pods[c.volume]
	default:
		c.object = v.claims[c.volume]
	}
}

// volumeID returns the ID of the volume, which is field 1 of the requests that remain.
func volumeID(message []byte) string {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return ""
		}
		if message = message[n:]; field == 1 && kind == protowire.BytesType {
			id, n := protowire.ConsumeString(message)
			if n < 0 {
				return ""
			}
			return id
		}
		if n = protowire.ConsumeFieldValue(field, kind, message); n < 0 {
			return ""
		}
		message = message[n:]
	}
	return ""
}

// created notes which claim a new volume belongs to.
func (h csiHandler) created(c *csiCall, message []byte) {
	var m csi.CreateVolumeResponse
	if proto.Unmarshal(message, &m) != nil || c.object.UID == "" {
		return
	}
	h.source.mu.Lock()
	defer h.source.mu.Unlock()
	h.source.volumes.claims[h.driver+"\x00"+m.GetVolume().GetVolumeId()] = c.object
}

// end records a call that is over.
func (h csiHandler) end(c *csiCall, at time.Time, err error) {
	r := record.Record{Object: c.object, Stage: record.Volume, Name: c.method, Actor: h.driver, Message: c.name,
		Start: h.source.clock.At(c.start), Duration: at.Sub(c.start)}
	if err != nil {
		r.Error = status.Convert(err).Message()
	}
	h.source.mu.Lock()
	v := &h.source.volumes
	var due []record.Record
	switch c.method {
	case "NodeStageVolume":
		v.stage(c.volume, r)
	case "NodePublishVolume":
		due = v.staged[c.volume]
		delete(v.staged, c.volume)
	case "NodeUnstageVolume":
		if err == nil {
			delete(v.pods, c.volume)
			delete(v.staged, c.volume)
		}
	case "DeleteVolume":
		if err == nil {
			delete(v.claims, c.volume)
		}
	}
	h.source.mu.Unlock()
	for _, staged := range due {
		staged.Object, staged.Message = c.object, c.name
		if c.object.UID != "" {
			h.source.sink.Add(staged)
		}
	}
	if r.Object.UID != "" {
		h.source.sink.Add(r)
	}
}

// claimOf returns the claim for which a volume is created. The provisioner names the volume after its UID, and passes
// its name on.
//
// Source: github.com/kubernetes-csi/external-provisioner/v6/pkg/controller (makeVolumeName, --extra-create-metadata).
func claimOf(volume string, parameters map[string]string) record.Ref {
	uid, ok := strings.CutPrefix(volume, "pvc-")
	if !ok {
		return record.Ref{}
	}
	return record.Ref{UID: uid, Resource: "persistentvolumeclaims",
		Namespace: parameters["csi.storage.k8s.io/pvc/namespace"], Name: parameters["csi.storage.k8s.io/pvc/name"]}
}

// podOfPath returns the pod and the volume of a path below the kubelet's directory:
// .../pods/<UID>/volumes/kubernetes.io~csi/<volume>/mount, or volumeDevices for a block device.
//
// Source: k8s.io/kubernetes/pkg/volume/csi (csi_mounter.go, csi_block.go).
func podOfPath(target string) (uid, volume string) {
	parts := strings.Split(target, "/")
	for i := 0; i+4 < len(parts); i++ {
		if parts[i] == "pods" && parts[i+2] == "volumes" {
			return parts[i+1], parts[i+4]
		}
	}
	// .../plugins/kubernetes.io/csi/volumeDevices/publish/<volume>/<pod UID>
	if n := len(parts); n > 4 && parts[n-4] == "volumeDevices" && parts[n-3] == "publish" {
		return parts[n-1], parts[n-2]
	}
	return "", ""
}

// pod returns the pod of a UID, as far as it is known. The caller holds mu.
func (s *Source) pod(uid string) record.Ref {
	for _, running := range s.syncs {
		if running.record.Object.UID == uid {
			return running.record.Object
		}
	}
	for _, sandbox := range s.sandboxes {
		if sandbox.pod.UID == uid {
			return sandbox.pod
		}
	}
	return record.Ref{UID: uid, Resource: pods}
}
