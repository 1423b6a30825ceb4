package restriction

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/storage"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/names"
)

const (
	driver = "local.example.org"
	key    = "topology.local.example.org/node"
)

// plugin has a cluster with the node-local driver, one that is not, claims for n1 and n2, and a volume of each.
func plugin(objects ...runtime.Object) *Plugin {
	immediate, wait, retain := storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer, corev1.PersistentVolumeReclaimRetain
	claim := func(name, node, class, volume string) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid-of-claim"}}
		if node != "" {
			c.Annotations = map[string]string{selectedNode: node}
		}
		c.Spec.StorageClassName, c.Spec.VolumeName = &class, volume
		return c
	}
	bound := func(name, node string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		}}
	}
	p := New()
	p.SetExternalKubeClientSet(fake.NewClientset(append([]runtime.Object{
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver, Annotations: map[string]string{names.NodeLocalAnnotation: key}}},
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "net.example.org"}},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: driver, VolumeBindingMode: &wait},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "at-once"}, Provisioner: driver, VolumeBindingMode: &immediate, ReclaimPolicy: &retain},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "net"}, Provisioner: "net.example.org", VolumeBindingMode: &immediate},
		claim("waits-on-n1", "n1", "local", ""), claim("waits-on-n2", "n2", "local", ""), claim("waits", "", "local", ""),
		claim("net-on-n1", "n1", "net", ""), claim("bound", "n1", "local", "pv-of-n1"),
		bound("pv-of-n1", "n1"), bound("pv-of-n2", "n2"),
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "nfs"}, Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}}},
	}, objects...)...))
	return p
}

// request is one of the storage controllers on n1, unless by is set.
type request struct {
	name        string
	resource    schema.GroupVersionResource
	subresource string
	op          admission.Operation
	old, now    runtime.Object
	by          user.Info
	refused     string // part of the reason; empty: allowed
}

func check(t *testing.T, p *Plugin, requests []request) {
	t.Helper()
	for _, r := range requests {
		if r.by == nil {
			r.by = &user.DefaultInfo{Name: client.StorageNodePrefix + "n1", Groups: []string{client.StorageNodes}}
		}
		a := admission.NewAttributesRecord(r.now, r.old, schema.GroupVersionKind{}, "", "x", r.resource, r.subresource, r.op, nil, false, r.by)
		err := p.Validate(t.Context(), a, nil)
		switch {
		case r.refused == "" && err != nil:
			t.Errorf("%s: %v", r.name, err)
		case r.refused != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), r.refused)):
			t.Errorf("%s: %v, want %q", r.name, err, r.refused)
		}
	}
}

// volume is one that the provisioner of n1 creates.
func volume(changes ...func(*core.PersistentVolume)) *core.PersistentVolume {
	v := &core.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"}, Spec: core.PersistentVolumeSpec{
		Capacity:                      core.ResourceList{core.ResourceStorage: resource.MustParse("1Gi")},
		PersistentVolumeSource:        core.PersistentVolumeSource{CSI: &core.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "x"}},
		ClaimRef:                      &core.ObjectReference{Namespace: "ns", Name: "waits-on-n1", UID: "uid-of-claim"},
		PersistentVolumeReclaimPolicy: core.PersistentVolumeReclaimDelete,
		StorageClassName:              "local",
	}}
	on("n1")(v)
	for _, f := range changes {
		f(v)
	}
	return v
}

// on is a node affinity of one term for each of the nodes.
func on(nodes ...string) func(*core.PersistentVolume) {
	return func(v *core.PersistentVolume) {
		required := &core.NodeSelector{}
		for _, n := range nodes {
			required.NodeSelectorTerms = append(required.NodeSelectorTerms, core.NodeSelectorTerm{
				MatchExpressions: []core.NodeSelectorRequirement{{Key: key, Operator: core.NodeSelectorOpIn, Values: strings.Split(n, ",")}},
			})
		}
		v.Spec.NodeAffinity = &core.VolumeNodeAffinity{Required: required}
	}
}

func TestVolumes(t *testing.T) {
	resource := corev1.SchemeGroupVersion.WithResource("persistentvolumes")
	source := func(s core.PersistentVolumeSource) func(*core.PersistentVolume) {
		return func(v *core.PersistentVolume) { v.Spec.PersistentVolumeSource = s }
	}
	ref := func(name string) func(*core.PersistentVolume) {
		return func(v *core.PersistentVolume) { v.Spec.ClaimRef.Name = name }
	}
	foreign, static := volume(on("n2")), volume(source(core.PersistentVolumeSource{NFS: &core.NFSVolumeSource{}}))
	var requests []request
	for _, r := range []struct {
		name    string
		change  func(*core.PersistentVolume)
		refused string
	}{
		{"as the provisioner creates it", func(*core.PersistentVolume) {}, ""},
		{"hostPath", source(core.PersistentVolumeSource{HostPath: &core.HostPathVolumeSource{Path: "/"}}), "has no CSI driver"},
		{"local", source(core.PersistentVolumeSource{Local: &core.LocalVolumeSource{Path: "/"}}), "has no CSI driver"},
		{"NFS", source(core.PersistentVolumeSource{NFS: &core.NFSVolumeSource{}}), "has no CSI driver"},
		{"another driver", func(v *core.PersistentVolume) { v.Spec.CSI.Driver = "net.example.org" }, "no annotation kubelith.io/node-local"},
		{"no such driver", func(v *core.PersistentVolume) { v.Spec.CSI.Driver = "x.example.org" }, "no annotation kubelith.io/node-local"},
		{"anywhere", func(v *core.PersistentVolume) { v.Spec.NodeAffinity = nil }, "not on node n1 alone"},
		{"no terms", on(), "not on node n1 alone"},
		{"another node", on("n2"), "not on node n1 alone"},
		{"one of two nodes", on("n1,n2"), "not on node n1 alone"},
		{"this or another node", on("n1", "n2"), "not on node n1 alone"},
		{"any but this node", func(v *core.PersistentVolume) {
			v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Operator = core.NodeSelectorOpNotIn
		}, "not on node n1 alone"},
		{"by another label", func(v *core.PersistentVolume) {
			v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Key = "kubernetes.io/os"
		}, "not on node n1 alone"},
		{"for no claim", func(v *core.PersistentVolume) { v.Spec.ClaimRef = nil }, "no claimRef"},
		{"for a claim of another node", ref("waits-on-n2"), "is not waiting for a volume on node n1"},
		{"for a claim of no node", ref("waits"), "is not waiting for a volume on node n1"},
		{"for a claim that has a volume", ref("bound"), "is not waiting for a volume on node n1"},
		{"for a claim of another driver", func(v *core.PersistentVolume) { v.Spec.ClaimRef.Name, v.Spec.StorageClassName = "net-on-n1", "net" }, "must have the driver, class and reclaim policy"},
		{"for no such claim", ref("none"), "PersistentVolumeClaim ns/none with the UID"},
		{"for an earlier claim", func(v *core.PersistentVolume) { v.Spec.ClaimRef.UID = "other" }, "with the UID other does not exist"},
		{"another class", func(v *core.PersistentVolume) { v.Spec.StorageClassName = "at-once" }, "must have the driver, class and reclaim policy"},
		{"another policy", func(v *core.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy = core.PersistentVolumeReclaimRetain
		}, "must have the driver, class and reclaim policy"},
		{"with a Secret", func(v *core.PersistentVolume) {
			v.Spec.CSI.NodeStageSecretRef = &core.SecretReference{Namespace: "kube-system", Name: "x"}
		}, "cannot have Secrets"},
	} {
		requests = append(requests, request{name: "create: " + r.name, resource: resource, op: admission.Create, now: volume(r.change), refused: r.refused})
	}
	check(t, plugin(), append(requests, []request{
		{name: "grow", resource: resource, op: admission.Update, old: volume(), now: volume(func(v *core.PersistentVolume) { v.Spec.Capacity = nil })},
		{name: "a finalizer", resource: resource, op: admission.Update, old: volume(), now: volume(func(v *core.PersistentVolume) { v.Finalizers = []string{"x"} })},
		{name: "change the policy", resource: resource, op: admission.Update, old: volume(), now: volume(func(v *core.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = "Retain" }), refused: "only the capacity"},
		{name: "change the claim", resource: resource, op: admission.Update, old: volume(), now: volume(ref("waits-on-n2")), refused: "only the capacity"},
		{name: "grow another node's", resource: resource, op: admission.Update, old: foreign, now: volume(), refused: "not on node n1 alone"},
		{name: "take an NFS volume", resource: resource, op: admission.Update, old: static, now: volume(), refused: "has no CSI driver"},
		{name: "status", resource: resource, subresource: "status", op: admission.Update, old: volume(), now: volume(), refused: "may not write status"},
		{name: "delete", resource: resource, op: admission.Delete, old: volume()},
		{name: "delete another node's", resource: resource, op: admission.Delete, old: foreign, refused: "not on node n1 alone"},
		{name: "delete an NFS volume", resource: resource, op: admission.Delete, old: static, refused: "has no CSI driver"},
		{name: "delete, the server", resource: resource, op: admission.Delete, old: foreign, by: &user.DefaultInfo{Name: client.Storage}},
		{name: "delete what cannot be seen", resource: resource, op: admission.Delete, refused: "unexpected types"},
	}...))
}

func TestClaims(t *testing.T) {
	resource := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	claim := func(class, node, volume string, changes ...func(*core.PersistentVolumeClaim)) *core.PersistentVolumeClaim {
		c := &core.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", Annotations: map[string]string{"a": "b"}}}
		c.Spec.StorageClassName, c.Spec.VolumeName = &class, volume
		if node != "" {
			c.Annotations[selectedNode] = node
		}
		for _, f := range changes {
			f(c)
		}
		return c
	}
	finalizer := func(name string) func(*core.PersistentVolumeClaim) {
		return func(c *core.PersistentVolumeClaim) { c.Finalizers = append(c.Finalizers, name) }
	}
	grown := func(c *core.PersistentVolumeClaim) {
		c.Status.Capacity = core.ResourceList{core.ResourceStorage: {}}
		c.Status.Conditions = []core.PersistentVolumeClaimCondition{{Type: core.PersistentVolumeClaimResizing}}
		c.Annotations[noExpansion] = "true"
	}
	update := func(name string, old, now *core.PersistentVolumeClaim, refused string) request {
		return request{name: name, resource: resource, op: admission.Update, old: old, now: now, refused: refused}
	}
	status := func(name string, old, now *core.PersistentVolumeClaim, refused string) request {
		r := update(name, old, now, refused)
		r.subresource = "status"
		return r
	}
	check(t, plugin(), []request{
		update("take one that any node may", claim("at-once", "", ""), claim("at-once", "n1", ""), ""),
		update("take one for another node", claim("at-once", "", ""), claim("at-once", "n2", ""), "already has the selected node"),
		update("take one of another node", claim("at-once", "n2", ""), claim("at-once", "n1", ""), "already has the selected node"),
		update("take one that the scheduler places", claim("local", "", ""), claim("local", "n1", ""), "only the scheduler selects"),
		update("take one of another driver", claim("net", "", ""), claim("net", "n1", ""), "no node-local volumes"),
		update("take one without a class", claim("", "", ""), claim("", "n1", ""), "no node-local volumes"),
		update("take one that has a volume", claim("at-once", "", "pv-of-n2"), claim("at-once", "n1", "pv-of-n2"), "only the scheduler selects"),
		update("give it back", claim("local", "n1", ""), claim("local", "", ""), ""),
		update("give back another node's", claim("local", "n2", ""), claim("local", "", ""), "already has the selected node"),
		update("give back a bound one", claim("local", "n1", "pv-of-n1"), claim("local", "", "pv-of-n1"), "already has the selected node"),

		update("protect the original of a copy", claim("local", "n1", "pv-of-n1"), claim("local", "n1", "pv-of-n1", finalizer(cloneProtection)), ""),
		update("on another node", claim("local", "n2", "pv-of-n2"), claim("local", "n2", "pv-of-n2", finalizer(cloneProtection)), "not on node n1 alone"),
		update("with a false annotation", claim("local", "n1", "pv-of-n2"), claim("local", "n1", "pv-of-n2", finalizer(cloneProtection)), "not on node n1 alone"),
		update("on NFS", claim("", "", "nfs"), claim("", "", "nfs", finalizer(cloneProtection)), "has no CSI driver"),
		update("another finalizer", claim("local", "n1", "pv-of-n1", finalizer("kubernetes.io/pvc-protection")), claim("local", "n1", "pv-of-n1"), "may change only the annotation"),
		update("another annotation", claim("local", "n1", ""), claim("local", "n1", "", func(c *core.PersistentVolumeClaim) { c.Annotations["a"] = "c" }), "may change only the annotation"),
		update("a label", claim("local", "n1", ""), claim("local", "n1", "", func(c *core.PersistentVolumeClaim) { c.Labels = map[string]string{"a": "b"} }), "may change only the annotation"),
		update("the volume", claim("local", "n1", ""), claim("local", "n1", "pv-of-n1"), "may change only the annotation"),

		status("grown", claim("local", "n1", "pv-of-n1"), claim("local", "n1", "pv-of-n1", grown), ""),
		status("grown, of another node", claim("local", "n1", "pv-of-n2"), claim("local", "n1", "pv-of-n2", grown), "not on node n1 alone"),
		status("grown, waiting elsewhere", claim("local", "n2", ""), claim("local", "n2", "", grown), "not for a volume on node n1"),
		status("the phase", claim("local", "n1", "pv-of-n1"), claim("local", "n1", "pv-of-n1", func(c *core.PersistentVolumeClaim) { c.Status.Phase = core.ClaimLost }), "only size and conditions"),
		{name: "create one", resource: resource, op: admission.Create, now: claim("local", "n1", ""), refused: "only update"},
		{name: "delete one", resource: resource, op: admission.Delete, old: claim("local", "n1", ""), refused: "only update"},
		{name: "the user", resource: resource, op: admission.Delete, old: claim("local", "n2", ""), by: &user.DefaultInfo{Name: "alice"}},
	})
}

func TestCapacities(t *testing.T) {
	resource := storagev1.SchemeGroupVersion.WithResource("csistoragecapacities")
	space := func(owner, class, at string) *storage.CSIStorageCapacity {
		return &storage.CSIStorageCapacity{
			ObjectMeta:       metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: owner, Controller: ptr.To(true)}}},
			StorageClassName: class, NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{key: at}},
		}
	}
	orphan := space("n1", "local", "n1")
	orphan.OwnerReferences = nil
	check(t, plugin(), []request{
		{name: "its own", resource: resource, op: admission.Create, now: space("n1", "local", "n1")},
		{name: "of another node", resource: resource, op: admission.Create, now: space("n1", "local", "n2"), refused: "not for node n1"},
		{name: "owned by another", resource: resource, op: admission.Create, now: space("n2", "local", "n1"), refused: "the Node n1 must be the only owner"},
		{name: "without an owner", resource: resource, op: admission.Create, now: orphan, refused: "the Node n1 must be the only owner"},
		{name: "of another driver", resource: resource, op: admission.Create, now: space("n1", "net", "n1"), refused: "not for node n1"},
		{name: "of no class", resource: resource, op: admission.Create, now: space("n1", "x", "n1"), refused: "StorageClass x does not exist"},
		{name: "change", resource: resource, op: admission.Update, old: space("n1", "local", "n1"), now: space("n1", "local", "n1")},
		{name: "take another's", resource: resource, op: admission.Update, old: space("n2", "local", "n2"), now: space("n1", "local", "n1"), refused: "the Node n1 must be the only owner"},
		{name: "delete", resource: resource, op: admission.Delete, old: space("n1", "gone", "n1")},
		{name: "delete another's", resource: resource, op: admission.Delete, old: space("n2", "local", "n2"), refused: "the Node n1 must be the only owner"},
	})
}

func TestNodes(t *testing.T) {
	resource := corev1.SchemeGroupVersion.WithResource("nodes")
	machine := strings.Repeat("a", 63)
	node := func(labels map[string]string, addresses ...core.NodeAddress) *core.Node {
		return &core.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: labels}, Status: core.NodeStatus{Addresses: addresses}}
	}
	labels := func(pairs ...string) map[string]string {
		all := map[string]string{names.RoleLabel: "agent", names.MachineLabel: machine, "example.org/rack": "r7"}
		for i := 0; i < len(pairs); i += 2 {
			if all[pairs[i]] = pairs[i+1]; pairs[i+1] == "-" {
				delete(all, pairs[i])
			}
		}
		return all
	}
	at := func(kind core.NodeAddressType, address string) core.NodeAddress {
		return core.NodeAddress{Type: kind, Address: address}
	}
	wireGuard := func(key string) *core.Node {
		n := node(labels())
		n.Annotations = map[string]string{names.WireGuardKeyAnnotation: key}
		return n
	}
	free, taken := strings.Repeat("A", 42)+"E=", strings.Repeat("A", 42)+"I="
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2", Annotations: map[string]string{names.WireGuardKeyAnnotation: taken}}}
	p := plugin(other, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: names.ReservationPrefix + "n1"}, Data: map[string]string{names.ReservationMachine: machine + "b"}})
	self := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}}
	create := func(name string, now *core.Node, refused string) request {
		return request{name: name, resource: resource, op: admission.Create, now: now, by: self, refused: refused}
	}
	update := func(name, subresource string, old, now *core.Node, refused string) request {
		return request{name: name, resource: resource, subresource: subresource, op: admission.Update, old: old, now: now, by: self, refused: refused}
	}
	pooled := labels("kubelith.io/servicelb", "dmz")
	check(t, p, []request{
		create("registers", node(labels(), at(core.NodeInternalIP, "192.0.2.1"), at(core.NodeHostName, "n1")), ""),
		create("registers as an upstream kubelet", node(map[string]string{"kubernetes.io/os": "linux"}), ""),
		create("as a server", node(labels(names.RoleLabel, "server")), "label kubelith.io/role"),
		create("as another machine", node(labels(names.MachineLabel, "b")), "label kubelith.io/machine"),
		create("into the pool", node(pooled), "label kubelith.io/servicelb"),
		create("with a label to come", node(labels("storage.kubelith.io/x", "y")), "label storage.kubelith.io/x"),
		create("with an external address", node(labels(), at(core.NodeExternalIP, "1.1.1.1")), "the ExternalIP 1.1.1.1"),

		update("another label", "", node(labels()), node(labels("example.org/rack", "r8")), ""),
		update("the missing label of an upgrade", "", node(labels(names.MachineLabel, "-")), node(labels()), ""),
		update("into the pool", "", node(labels()), node(pooled), "label kubelith.io/servicelb"),
		update("into the pool with its status", "status", node(labels()), node(pooled), "label kubelith.io/servicelb"),
		update("out of the pool", "", node(pooled), node(labels()), "label kubelith.io/servicelb"),
		update("the empty value", "", node(labels()), node(labels("kubelith.io/servicelb", "")), "label kubelith.io/servicelb"),
		update("in the pool, its status", "status", node(pooled), node(pooled, at(core.NodeInternalIP, "192.0.2.1")), ""),
		update("becomes a server", "", node(labels()), node(labels(names.RoleLabel, "server")), "label kubelith.io/role"),
		update("hides its role", "", node(labels()), node(labels(names.RoleLabel, "-")), "label kubelith.io/role"),
		update("its topology", "", node(labels()), node(labels("topology.local.kubelith.io/node", "n1")), ""),
		update("the topology of another", "", node(labels()), node(labels("topology.local.kubelith.io/node", "n2")), "label topology.local.kubelith.io/node"),
		update("an external address", "status", node(labels()), node(labels(), at(core.NodeExternalIP, "1.1.1.1")), "the ExternalIP 1.1.1.1"),
		update("an external name", "status", node(labels()), node(labels(), at(core.NodeExternalDNS, "registry.example.org")), "the ExternalDNS registry.example.org"),
		update("an external address that another client set", "status", node(labels(), at(core.NodeExternalIP, "198.51.100.1")), node(labels(), at(core.NodeExternalIP, "198.51.100.1"), at(core.NodeInternalIP, "192.0.2.1")), ""),
		update("its WireGuard key", "", node(labels()), wireGuard(free), ""),
		update("the WireGuard key of another", "", node(labels()), wireGuard(taken), "the WireGuard key of Node n2"),
		update("the WireGuard key of another, spelled differently", "status", node(labels()), wireGuard(taken[:42]+"J="), "the WireGuard key of Node n2"),
		update("no key", "", node(labels()), wireGuard("x"), "32 bytes in base64"),
		update("a WireGuard key that an administrator set", "", wireGuard(taken), wireGuard(taken), ""),

		{name: "an administrator", resource: resource, op: admission.Update, old: node(labels()), now: node(pooled), by: &user.DefaultInfo{Name: "alice"}},
		{name: "a name like a node's", resource: resource, op: admission.Update, old: node(labels()), now: node(pooled), by: &user.DefaultInfo{Name: "system:node:n1"}},
		{name: "deletes itself", resource: resource, op: admission.Delete, old: node(labels()), by: self},
	})
	// After its Node was deleted the name is not reserved, and the machine registers again.
	check(t, plugin(), []request{create("registers again", node(labels(names.MachineLabel, "b")), "")})
}

func TestImpersonation(t *testing.T) {
	self := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}}
	for _, tc := range []struct {
		name              string
		by                user.Info
		verb, group, what string
		as                string
		want              authorizer.Decision
	}{
		{"itself", self, "impersonate", "", "users", client.StorageNodePrefix + "n1", authorizer.DecisionAllow},
		{"another node", self, "impersonate", "", "users", client.StorageNodePrefix + "n2", authorizer.DecisionNoOpinion},
		{"the server", self, "impersonate", "", "users", client.Storage, authorizer.DecisionNoOpinion},
		{"no node", self, "impersonate", "", "users", client.StorageNodePrefix, authorizer.DecisionNoOpinion},
		{"a service account", self, "impersonate", "", "serviceaccounts", client.StorageNodePrefix + "n1", authorizer.DecisionNoOpinion},
		{"another group of the API", self, "impersonate", "x", "users", client.StorageNodePrefix + "n1", authorizer.DecisionNoOpinion},
		{"another verb", self, "get", "", "users", client.StorageNodePrefix + "n1", authorizer.DecisionNoOpinion},
		{"a user of a node's name", &user.DefaultInfo{Name: "system:node:n1"}, "impersonate", "", "users", client.StorageNodePrefix + "n1", authorizer.DecisionNoOpinion},
	} {
		got, _, err := Impersonation().Authorize(t.Context(), authorizer.AttributesRecord{User: tc.by, Verb: tc.verb, APIGroup: tc.group, Resource: tc.what, Name: tc.as, ResourceRequest: true})
		if got != tc.want || err != nil {
			t.Errorf("%s: %v, %v", tc.name, got, err)
		}
	}
}
