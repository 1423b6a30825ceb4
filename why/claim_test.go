package why

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func gi(n string) corev1.ResourceList { return corev1.ResourceList{"storage": resource.MustParse(n)} }

// aClaim is a claim of 1Gi of the class named, created a minute ago.
func aClaim(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	class := "fast"
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "uid-data", CreationTimestamp: before(time.Minute)},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{"ReadWriteOnce"},
			Resources: corev1.VolumeResourceRequirements{Requests: gi("1Gi")}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	if change != nil {
		change(c)
	}
	return c
}

func aClass(name, provisioner string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: &mode}
}

func aVolume(name, class, size string, change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
		Spec: corev1.PersistentVolumeSpec{StorageClassName: class, Capacity: gi(size), AccessModes: []corev1.PersistentVolumeAccessMode{"ReadWriteOnce"}}}
	if change != nil {
		change(v)
	}
	return v
}

func usesClaim(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
}

func claimEvent(reason, text string, ago time.Duration) *corev1.Event {
	return event("data", "uid-data", "Warning", reason, text, ago)
}

var claimTarget = target(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), "persistentvolumeclaims", "ns", "data")

func TestClaims(t *testing.T) {
	first, now := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	class := func(name string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
	}
	noClass := func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }
	bound := func(have string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeName, c.Status.Phase, c.Status.Capacity = "pv", corev1.ClaimBound, gi(have)
		}
	}
	driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "csi.test"}}
	capacity := driver.DeepCopy()
	yes := true
	capacity.Spec.StorageCapacity = &yes
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "csi.test"}}}}
	space := func(free string) *storagev1.CSIStorageCapacity {
		q := resource.MustParse(free)
		return &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "c"}, StorageClassName: "fast", Capacity: &q}
	}
	failure := `failed to provision volume with StorageClass "fast": rpc error: code = Internal desc = the array is offline`
	full := `failed to provision volume with StorageClass "fast": rpc error: code = ResourceExhausted desc = 1 GiB wanted, 3 MiB free`
	deleted := func(c *corev1.PersistentVolumeClaim) {
		at := before(time.Minute)
		bound("1Gi")(c)
		c.DeletionTimestamp, c.Finalizers = &at, []string{protection}
	}
	pod := aPod(usesClaim)
	waiting := aPod(all(refused("0/1 nodes are available: 1 Insufficient cpu."), usesClaim))
	ended := aPod(all(usesClaim, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }))
	for name, c := range map[string]struct {
		claim  func(*corev1.PersistentVolumeClaim)
		others []runtime.Object
		status Status
		code   Code
		proof  string
	}{
		"bound":                      {bound("1Gi"), nil, Healthy, OK, "Bound"},
		"bound after a failure":      {bound("1Gi"), []runtime.Object{claimEvent("ProvisioningFailed", failure, time.Second)}, Healthy, OK, "Bound"},
		"lost":                       {func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost }, nil, Broken, ClaimLost, "Lost"},
		"no such class":              {nil, []runtime.Object{aClass("slow", "csi.test", now)}, Broken, StorageClassMissing, "the classes are: slow"},
		"no default class":           {noClass, []runtime.Object{aClass("slow", "csi.test", now)}, Broken, NoDefaultClass, "the classes are: slow"},
		"no class: a volume is near": {noClass, []runtime.Object{aVolume("pv", "", "512Mi", nil)}, Broken, NoDefaultClass, "has 512Mi, less than 1Gi"},
		"a default class": {noClass, []runtime.Object{&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "slow",
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}}}}, Progressing, InProgress, "is the default"},
		"class empty, too small":   {class(""), []runtime.Object{aVolume("pv", "", "512Mi", nil)}, Broken, NoVolumeFits, "has 512Mi, less than 1Gi"},
		"class empty, other modes": {class(""), []runtime.Object{aVolume("pv", "", "1Gi", func(v *corev1.PersistentVolume) { v.Spec.AccessModes[0] = "ReadOnlyMany" })}, Broken, NoVolumeFits, "[ReadOnlyMany], not [ReadWriteOnce]"},
		"class empty, selector": {func(c *corev1.PersistentVolumeClaim) {
			class("")(c)
			c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "a"}}
		}, []runtime.Object{aVolume("pv", "", "1Gi", nil)}, Broken, NoVolumeFits, "selector"},
		"class empty, taken": {class(""), []runtime.Object{aVolume("pv", "", "1Gi", func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "other"}
		})}, Broken, NoVolumeFits, "belongs to claim ns/other"},
		"a class of volumes only": {nil, []runtime.Object{aVolume("pv", "fast", "512Mi", nil)}, Broken, NoVolumeFits, "less than"},
		"about to be bound": {func(c *corev1.PersistentVolumeClaim) { class("")(c); c.CreationTimestamp = before(time.Second) },
			[]runtime.Object{aVolume("pv", "", "1Gi", nil)}, Progressing, InProgress, "fits"},
		"names no volume":        {func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "mine" }, nil, Broken, NoVolumeFits, "does not exist"},
		"made by hand":           {nil, []runtime.Object{aClass("fast", noProvisioner, now)}, Broken, NoVolumeFits, "none"},
		"waits for a pod":        {nil, []runtime.Object{aClass("fast", "csi.test", first), driver, node}, Progressing, ClaimWaits, "none uses the claim"},
		"waits, the pod ended":   {nil, []runtime.Object{aClass("fast", "csi.test", first), driver, node, ended}, Progressing, ClaimWaits, "none uses the claim"},
		"waits, the pod waits":   {nil, []runtime.Object{aClass("fast", "csi.test", first), driver, node, waiting}, Broken, InsufficientResources, "Insufficient cpu"},
		"no provisioner":         {nil, []runtime.Object{aClass("fast", "csi.test", now)}, Broken, ProvisionerMissing, "does not exist"},
		"registered nowhere":     {nil, []runtime.Object{aClass("fast", "csi.test", now), driver}, Broken, ProvisionerMissing, "none of 0 nodes"},
		"not of CSI, took it":    {nil, []runtime.Object{aClass("fast", "example.org/nfs", now), claimEvent("Provisioning", "External provisioner is provisioning", time.Second)}, Progressing, InProgress, "example.org/nfs"},
		"the provisioner works":  {nil, []runtime.Object{aClass("fast", "csi.test", now), driver, node}, Progressing, InProgress, "csi.test"},
		"the provisioner hangs":  {func(c *corev1.PersistentVolumeClaim) { c.CreationTimestamp = before(time.Hour) }, []runtime.Object{aClass("fast", "csi.test", now), driver, node}, Broken, ClaimUnbound, "csi.test"},
		"provisioning fails":     {nil, []runtime.Object{aClass("fast", "csi.test", now), driver, node, claimEvent("ProvisioningFailed", failure, time.Second)}, Broken, ProvisioningFailing, "the array is offline"},
		"failed long ago":        {nil, []runtime.Object{aClass("fast", "csi.test", now), driver, node, claimEvent("ProvisioningFailed", failure, time.Hour)}, Progressing, InProgress, "csi.test"},
		"the driver is full":     {nil, []runtime.Object{aClass("fast", "csi.test", now), driver, node, claimEvent("ProvisioningFailed", full, time.Second)}, Broken, NoCapacity, "3 MiB free"},
		"nowhere is room":        {nil, []runtime.Object{aClass("fast", "csi.test", first), capacity, node, space("1Mi"), waiting}, Broken, NoCapacity, "1Mi free"},
		"there is room":          {nil, []runtime.Object{aClass("fast", "csi.test", first), capacity, node, space("2Gi"), waiting}, Broken, InsufficientResources, "Insufficient cpu"},
		"no room, no pod":        {nil, []runtime.Object{aClass("fast", "csi.test", first), capacity, node, space("1Mi")}, Progressing, ClaimWaits, "none uses"},
		"grows":                  {bound("512Mi"), nil, Progressing, InProgress, "asks for 1Gi and has 512Mi"},
		"cannot grow":            {bound("512Mi"), []runtime.Object{claimEvent("VolumeResizeFailed", "resize volume \"pv\" by resizer failed: rpc error: code = OutOfRange desc = the disk is too small", time.Second)}, Broken, ResizeFailing, "too small"},
		"has grown":              {bound("1Gi"), []runtime.Object{claimEvent("VolumeResizeFailed", "no", time.Second)}, Healthy, OK, "Bound"},
		"deleted, used":          {deleted, []runtime.Object{pod}, Broken, ClaimInUse, "uses the claim data"},
		"deleted, the pod ended": {deleted, []runtime.Object{ended}, Broken, FinalizerHolds, protection},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := reader(t, append([]runtime.Object{aClaim(c.claim)}, c.others...)...)
			a := ask(t, r, claimTarget)
			if a.Status != c.status || a.Code != c.code || !a.proves(c.proof) {
				t.Errorf("want %s %s with %q, got %+v", c.status, c.code, c.proof, a)
			}
			if a.Status == Broken && len(a.Remedy) == 0 {
				t.Errorf("no remedy: %+v", a)
			}
		})
	}
}

// A pod that waits for its claim ends at the claim's cause; one whose claim waits for it ends at its own.
func TestPodOfClaim(t *testing.T) {
	pod := aPod(all(refused("0/1 nodes are available: 1 Insufficient cpu."), usesClaim))
	r, _ := reader(t, pod, aClaim(nil))
	if a := ask(t, r, podTarget("web")); a.Code != StorageClassMissing || len(a.Chain) != 2 || a.Chain[1].String() != "persistentvolumeclaim/data" {
		t.Errorf("got %+v", a)
	}
	// Another pod that uses the claim has no part in it.
	other := aPod(all(refused("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."), usesClaim))
	other.Name, other.UID, other.Spec.NodeSelector = "another", "uid-another", map[string]string{"disk": "ssd"}
	for _, others := range [][]runtime.Object{nil, {other}} {
		r, _ = reader(t, append(others, pod, aClaim(nil), aClass("fast", noProvisioner, storagev1.VolumeBindingWaitForFirstConsumer))...)
		if a := ask(t, r, podTarget("web")); a.Code != InsufficientResources || len(a.Chain) != 0 {
			t.Errorf("got %+v", a)
		}
	}
	if a := ask(t, r, claimTarget); a.Status != Broken || len(a.Chain) != 2 || a.Chain[1].String() != "pod/another" {
		t.Errorf("the claim: %+v", a)
	}
}
