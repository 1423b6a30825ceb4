package why

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"kubelith.io/kubelith/base/oneline"
)

// protection keeps a claim that a pod uses.
//
// Source: k8s.io/kubernetes/pkg/volume/util/finalizer.go (PVCProtectionFinalizer)
const protection = "kubernetes.io/pvc-protection"

// noProvisioner is the provisioner of classes whose volumes are created by hand.
//
// Source: k8s.io/component-helpers/storage/volume/pv_helpers.go (NotSupportedProvisioner)
const noProvisioner = storagehelpers.NotSupportedProvisioner

func claimObject(c *corev1.PersistentVolumeClaim) Object {
	return Object{Type: "persistentvolumeclaim", Namespace: c.Namespace, Name: c.Name, UID: string(c.UID)}
}

// explainClaim explains a claim: deleted, bound, or why it is not bound.
func explainClaim(ctx context.Context, r *Reader, claim *corev1.PersistentVolumeClaim) (*Finding, error) {
	o := claimObject(claim)
	switch {
	case claim.DeletionTimestamp != nil:
		return r.claimDeleted(ctx, claim), nil
	case claim.Status.Phase == corev1.ClaimLost:
		f := broken(ClaimLost, fmt.Sprintf("%s has lost its volume %s: the PersistentVolume was deleted, or is bound to another claim",
			o, claim.Spec.VolumeName))
		f.saw(o.String()+" .status.phase", "Lost").saw(o.String()+" .spec.volumeName", claim.Spec.VolumeName)
		return f.do("Restore the PersistentVolume from a backup of its manifest, or delete the claim and restore the data into a new one."), nil
	case claim.Status.Phase == corev1.ClaimBound:
		return r.claimBound(ctx, claim), nil
	}
	return r.claimPending(ctx, claim).saw(o.String()+" .status.phase", string(claim.Status.Phase)), nil
}

// users are the pods that use a claim and have not ended.
//
// Source: k8s.io/kubernetes/pkg/controller/volume/pvcprotection
func (r *Reader) users(ctx context.Context, claim *corev1.PersistentVolumeClaim) []corev1.Pod {
	pods, err := r.Pods(ctx, claim.Namespace, "")
	if err != nil {
		return nil
	}
	var users []corev1.Pod
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		if slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return claimName(&pod, v) == claim.Name }) {
			users = append(users, pod)
		}
	}
	return users
}

func (r *Reader) claimDeleted(ctx context.Context, claim *corev1.PersistentVolumeClaim) *Finding {
	o := claimObject(claim)
	users := r.users(ctx, claim)
	if !slices.Contains(claim.Finalizers, protection) || len(users) == 0 {
		return deletion(r, o, claim)
	}
	at := *claim.DeletionTimestamp
	f := broken(ClaimInUse, fmt.Sprintf("%s was deleted %s ago, but stays until the pods that use it have ended: %s",
		o, ago(r.age(at)), podNames(users)))
	f.since(at).sawAt(o.String()+" .metadata.deletionTimestamp", "deletion was requested", at)
	f.saw(o.String()+" .metadata.finalizers", strings.Join(claim.Finalizers, ", "))
	for _, pod := range users[:min(len(users), 3)] {
		f.saw("pod/"+pod.Name+" .spec.volumes", "uses the claim "+claim.Name)
	}
	return f.not(FinalizerHolds, "a finalizer was left behind", "pods use the claim; its finalizer goes when they have ended").
		do("Delete the pods, or their controllers. The deletion of the claim cannot be undone: " +
			"once these pods are gone, so are the claim and, depending on the reclaim policy, its data.")
}

// podNames lists up to three pods.
func podNames(pods []corev1.Pod) string {
	var names []string
	for _, pod := range pods[:min(len(pods), 3)] {
		names = append(names, "pod/"+pod.Name)
	}
	if more := len(pods) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

func sizeOf(l corev1.ResourceList) string {
	q := l[corev1.ResourceStorage]
	return q.String()
}

func (r *Reader) claimBound(ctx context.Context, claim *corev1.PersistentVolumeClaim) *Finding {
	o := claimObject(claim)
	want, have := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	if want.Cmp(have) > 0 {
		return r.claimResizing(ctx, claim)
	}
	since := metav1.Time{}
	if pv, err := r.Volume(ctx, claim.Spec.VolumeName); err == nil && pv.Status.LastPhaseTransitionTime != nil {
		since = *pv.Status.LastPhaseTransitionTime
	}
	f := found(Healthy, OK, fmt.Sprintf("%s is bound to the volume %s, of %s", o, claim.Spec.VolumeName, have.String())).since(since)
	if !since.IsZero() {
		f.Cause += ", since " + clock(since)
	}
	return f.sawAt(o.String()+" .status.phase", "Bound", since)
}

// claimResizing explains a bound claim that requests more than it has.
func (r *Reader) claimResizing(ctx context.Context, claim *corev1.PersistentVolumeClaim) *Finding {
	o := claimObject(claim)
	sizes := fmt.Sprintf("it asks for %s and has %s", sizeOf(claim.Spec.Resources.Requests), sizeOf(claim.Status.Capacity))
	state := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	var f *Finding
	e := r.LastEvent(ctx, claim, metav1.NewTime(r.now().Add(-2*retried)), "VolumeResizeFailed")
	failed := state == corev1.PersistentVolumeClaimControllerResizeInfeasible || state == corev1.PersistentVolumeClaimNodeResizeInfeasible
	var message string
	for _, c := range claim.Status.Conditions {
		isError := c.Type == corev1.PersistentVolumeClaimControllerResizeError || c.Type == corev1.PersistentVolumeClaimNodeResizeError
		if isError && c.Status == corev1.ConditionTrue {
			failed, message = true, c.Message
		}
	}
	if e != nil {
		failed, message = true, firstOf(message, e.Message)
	}
	switch {
	case failed:
		f = broken(ResizeFailing, fmt.Sprintf("%s cannot grow: %s", o, oneline.Shorten(firstOf(after(message, "desc = "), string(state)), 300)))
		f.do("The error is the driver's. Make room for the volume, or lower the request, but not below the claim's capacity.")
	case slices.ContainsFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending && c.Status == corev1.ConditionTrue
	}) && len(r.users(ctx, claim)) == 0:
		f = found(Progressing, ClaimWaits, fmt.Sprintf("%s grows when a pod uses it: its file system is enlarged on the pod's node", o)).
			do("Start a pod that uses the claim.")
	default:
		f = found(Progressing, InProgress, fmt.Sprintf("in progress: %s is growing: %s", o, sizes))
	}
	f.saw(o.String()+" .status.capacity", sizes).saw(o.String()+" .status.allocatedResourceStatuses", string(state))
	for _, c := range claim.Status.Conditions {
		if c.Status == corev1.ConditionTrue {
			f.sawAt(fmt.Sprintf("%s .status.conditions[%s]", o, c.Type), firstOf(c.Message, "True"), c.LastTransitionTime)
		}
	}
	return f.sawEvent(e)
}

// claimPending explains a claim that is not bound.
func (r *Reader) claimPending(ctx context.Context, claim *corev1.PersistentVolumeClaim) *Finding {
	o := claimObject(claim)
	volumes, volumesErr := r.Volumes(ctx)
	if name := claim.Spec.VolumeName; name != "" {
		return r.claimOfVolume(ctx, claim, name)
	}
	name, named := storagehelpers.GetPersistentVolumeClaimClass(claim), storagehelpers.PersistentVolumeClaimHasClass(claim)
	for _, pv := range volumes {
		if unfit(claim, &pv, name) == "" && r.age(claim.CreationTimestamp) < 2*fresh {
			return found(Progressing, InProgress, fmt.Sprintf("in progress: %s fits the volume %s, and is about to be bound to it", o, pv.Name)).
				saw("persistentvolume/"+pv.Name, "fits")
		}
	}
	if name == "" {
		f := r.noVolumeFits(claim, volumes, name, volumesErr)
		if named {
			return f
		}
		return r.noClass(ctx, claim, f)
	}
	class, err := get(ctx, r, "storageclasses.storage.k8s.io", "", name, r.Client.StorageV1().StorageClasses().Get)
	if apierrors.IsNotFound(err) {
		if slices.ContainsFunc(volumes, func(pv corev1.PersistentVolume) bool { return storagehelpers.GetPersistentVolumeClass(&pv) == name }) {
			return r.noVolumeFits(claim, volumes, name, volumesErr)
		}
		f := broken(StorageClassMissing, fmt.Sprintf("%s asks for the StorageClass %s, which does not exist", o, name))
		f.since(claim.CreationTimestamp).saw(o.String()+" .spec.storageClassName", name)
		return f.saw("LIST storageclasses", r.classNames(ctx)).
			not(NoDefaultClass, "there is no default class", "the claim names a class, so the default does not count").
			do("A claim's class cannot be changed: delete the claim and create it with a class that exists, or create the class "+name+".",
				kubectl("", "get storageclasses"))
	}
	if err != nil {
		return broken(ClaimUnbound, fmt.Sprintf("%s is not bound to a volume", o)).do(kubectl(claim.Namespace, "describe pvc %s", claim.Name))
	}
	return r.claimOfClass(ctx, claim, class, volumes, volumesErr)
}

// classNames lists the StorageClasses and marks the default.
func (r *Reader) classNames(ctx context.Context) string {
	l, err := list(ctx, r, "storageclasses.storage.k8s.io", "", metav1.ListOptions{}, r.Client.StorageV1().StorageClasses().List)
	if err != nil {
		return ""
	}
	var names []string
	for _, c := range l.Items {
		if isDefault(&c) {
			c.Name += " (default)"
		}
		names = append(names, c.Name)
	}
	return "the classes are: " + firstOf(strings.Join(names, ", "), "none")
}

// isDefault reports whether a class is the cluster's default.
//
// Source: https://kubernetes.io/docs/concepts/storage/storage-classes/#default-storageclass
func isDefault(c *storagev1.StorageClass) bool {
	return c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" ||
		c.Annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true"
}

// noClass explains a claim without a class; static is the finding for volumes created by hand.
func (r *Reader) noClass(ctx context.Context, claim *corev1.PersistentVolumeClaim, static *Finding) *Finding {
	o := claimObject(claim)
	l, err := list(ctx, r, "storageclasses.storage.k8s.io", "", metav1.ListOptions{}, r.Client.StorageV1().StorageClasses().List)
	if err != nil {
		return static
	}
	for _, c := range l.Items {
		if isDefault(&c) {
			return found(Progressing, InProgress, fmt.Sprintf("in progress: %s is about to get the default class %s", o, c.Name)).
				saw("storageclass/"+c.Name, "is the default")
		}
	}
	f := broken(NoDefaultClass, fmt.Sprintf("%s names no StorageClass, and no class is the default", o)).since(claim.CreationTimestamp)
	f.saw(o.String()+" .spec.storageClassName", "not set").saw("LIST storageclasses", r.classNames(ctx))
	f.Evidence = append(f.Evidence, static.Evidence...)
	return f.not(NoVolumeFits, "a volume created by hand would do", "none fits").
		do("Mark a class as the default; claims without a class then get it:",
			kubectl("", "annotate storageclass NAME storageclass.kubernetes.io/is-default-class=true"))
}

// unfit returns why a volume created by hand cannot be bound to a claim; "": it can.
//
// Source: FindMatchingVolume in k8s.io/component-helpers/storage/volume/pv_helpers.go
func unfit(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, class string) string {
	want, have := claim.Spec.Resources.Requests[corev1.ResourceStorage], pv.Spec.Capacity[corev1.ResourceStorage]
	var why []string
	if got := storagehelpers.GetPersistentVolumeClass(pv); got != class {
		why = append(why, fmt.Sprintf("is of class %q, not %q", got, class))
	}
	if ref := pv.Spec.ClaimRef; ref != nil && !storagehelpers.IsVolumeBoundToClaim(pv, claim) {
		why = append(why, fmt.Sprintf("belongs to claim %s/%s", ref.Namespace, ref.Name))
	} else if phase := pv.Status.Phase; phase != corev1.VolumeAvailable && ref == nil {
		why = append(why, "is "+firstOf(string(phase), "not Available yet"))
	}
	if have.Cmp(want) < 0 {
		why = append(why, fmt.Sprintf("has %s, less than %s", have.String(), want.String()))
	}
	if !storagehelpers.CheckAccessModes(claim, pv) {
		why = append(why, fmt.Sprintf("has the access modes %v, not %v", pv.Spec.AccessModes, claim.Spec.AccessModes))
	}
	if storagehelpers.CheckVolumeModeMismatches(&claim.Spec, &pv.Spec) {
		why = append(why, "has another volumeMode")
	}
	if claim.Spec.Selector != nil {
		if s, err := metav1.LabelSelectorAsSelector(claim.Spec.Selector); err != nil || !s.Matches(labels.Set(pv.Labels)) {
			why = append(why, "does not have the labels of the claim's selector")
		}
	}
	if pv.DeletionTimestamp != nil {
		why = append(why, "is being deleted")
	}
	return strings.Join(why, ", ")
}

// maxVolumes bounds the volumes for which an answer explains why they do not fit.
const maxVolumes = 6

// noVolumeFits explains a claim for which volumes are created by hand. The nearest volumes come first.
func (r *Reader) noVolumeFits(claim *corev1.PersistentVolumeClaim, volumes []corev1.PersistentVolume, class string, err error) *Finding {
	o := claimObject(claim)
	type near struct{ name, why string }
	var all []near
	for _, pv := range volumes {
		all = append(all, near{pv.Name, unfit(claim, &pv, class)})
	}
	slices.SortStableFunc(all, func(a, b near) int { return strings.Count(a.why, ", ") - strings.Count(b.why, ", ") })
	cause := fmt.Sprintf("no PersistentVolume fits %s, and no provisioner creates one", o)
	if len(all) == 1 {
		cause = fmt.Sprintf("no PersistentVolume fits %s: the only one, %s, %s", o, all[0].name, firstOf(all[0].why, "fits, and was not taken"))
	}
	f := broken(NoVolumeFits, cause).since(claim.CreationTimestamp)
	f.saw(o.String()+" .spec", fmt.Sprintf("asks for %s, %v, class %q", sizeOf(claim.Spec.Resources.Requests), claim.Spec.AccessModes, class))
	for _, n := range all[:min(len(all), maxVolumes)] {
		f.saw("persistentvolume/"+n.name, firstOf(n.why, "fits"))
	}
	if len(all) == 0 && err == nil {
		f.saw("LIST persistentvolumes", "none")
	}
	return f.do("Create a PersistentVolume that fits, or delete the claim and create it with a class that has a provisioner.")
}

// claimOfVolume explains a claim that names its volume.
func (r *Reader) claimOfVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim, name string) *Finding {
	o := claimObject(claim)
	pv, err := r.Volume(ctx, name)
	var why string
	switch {
	case apierrors.IsNotFound(err):
		why = "does not exist"
	case err != nil:
		return broken(ClaimUnbound, fmt.Sprintf("%s is not bound to the volume %s that it names", o, name)).do(kubectl("", "get pv %s", name))
	default:
		why = unfit(claim, pv, storagehelpers.GetPersistentVolumeClaimClass(claim))
	}
	if why == "" {
		return found(Progressing, InProgress, fmt.Sprintf("in progress: %s is being bound to the volume %s", o, name)).saw("persistentvolume/"+name, "fits")
	}
	f := broken(NoVolumeFits, fmt.Sprintf("%s asks for the PersistentVolume %s, which %s", o, name, why)).since(claim.CreationTimestamp)
	return f.saw(o.String()+" .spec.volumeName", name).saw("persistentvolume/"+name, why).
		do("Create that volume or correct it, or delete the claim and create it without volumeName.")
}

// claimOfClass explains a claim of a class that exists.
func (r *Reader) claimOfClass(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass,
	volumes []corev1.PersistentVolume, volumesErr error,
) *Finding {
	o := claimObject(claim)
	node := claim.Annotations[storagehelpers.AnnSelectedNode]
	mode := class.VolumeBindingMode
	waits := mode != nil && *mode == storagev1.VolumeBindingWaitForFirstConsumer && node == ""
	if f := r.provisioning(ctx, claim, class); f != nil {
		return f
	}
	if !waits && class.Provisioner == noProvisioner {
		return r.noVolumeFits(claim, volumes, class.Name, volumesErr)
	}
	provisioner := fmt.Sprintf("storageclass/%s .provisioner", class.Name)
	if waits {
		users := r.users(ctx, claim)
		if len(users) == 0 {
			f := found(Progressing, ClaimWaits, fmt.Sprintf("%s waits for a pod that uses it: its class %s creates a volume once the pod has a node",
				o, class.Name))
			return f.saw("storageclass/"+class.Name+" .volumeBindingMode", string(*mode)).saw("LIST pods", "none uses the claim").
				do("Create the pod: the claim has no fault.")
		}
		if f := r.noProvisioner(ctx, claim, class); f != nil {
			return f
		}
		if f := r.noCapacity(ctx, claim, class); f != nil {
			return f.saw("pod/"+users[0].Name+" .spec.volumes", "uses the claim "+claim.Name)
		}
		if !r.ofPod { // what keeps a pod from a node is its own cause
			for _, pod := range users {
				if f := r.podCause(ctx, &pod); f != nil && f.Status == Broken {
					return f.under(o, podObject(&pod))
				}
			}
		}
		return found(Progressing, InProgress, fmt.Sprintf("in progress: %s waits until %s has a node", o, podNames(users))).
			saw("storageclass/"+class.Name+" .volumeBindingMode", string(*mode))
	}
	if f := r.noProvisioner(ctx, claim, class); f != nil {
		return f
	}
	if r.age(claim.CreationTimestamp) < retried {
		return found(Progressing, InProgress, fmt.Sprintf("in progress: the provisioner %s was asked for a volume for %s", class.Provisioner, o)).
			saw(provisioner, class.Provisioner).saw(o.String()+" .metadata.annotations["+storagehelpers.AnnSelectedNode+"]", node)
	}
	f := broken(ClaimUnbound, fmt.Sprintf("%s is not bound to a volume: the provisioner %s was asked %s ago, but reports nothing",
		o, class.Provisioner, ago(r.age(claim.CreationTimestamp))))
	return f.since(claim.CreationTimestamp).saw(provisioner, class.Provisioner).
		sawEvent(r.LastEvent(ctx, claim, claim.CreationTimestamp, "ExternalProvisioning", "Provisioning")).
		do("Read the log of the provisioner; kubelith plugin list shows the state of a plugin of kubelith.")
}

// podCause explains a pod; nil is unknown.
func (r *Reader) podCause(ctx context.Context, pod *corev1.Pod) *Finding {
	f, err := explainPod(ctx, r, pod)
	if err != nil {
		return nil
	}
	return f
}

// provisioning explains a claim for which its provisioner was called and failed.
//
// Source: sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller (provisionClaimOperation): failed to
// provision volume with StorageClass "NAME": ERROR; errors of a CSI driver are gRPC statuses
func (r *Reader) provisioning(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) *Finding {
	e := r.LastEvent(ctx, claim, metav1.NewTime(r.now().Add(-2*retried)), "ProvisioningFailed", "ProvisioningSucceeded")
	if e == nil || e.Reason != "ProvisioningFailed" || e.Last.Before(&claim.CreationTimestamp) {
		return nil
	}
	o, code, remedy := claimObject(claim), ProvisioningFailing, "The error is the driver's: read its log. The driver is called again by itself."
	text := after(e.Message, "desc = ")
	if strings.Contains(e.Message, "code = ResourceExhausted") {
		code, remedy = NoCapacity, "Free space, add a node or a disk, or delete the claim and create it with a smaller request."
	}
	if _, rest, ok := strings.Cut(text, fmt.Sprintf("with StorageClass %q: ", class.Name)); ok {
		text = rest
	}
	f := broken(code, fmt.Sprintf("no volume can be created for %s: %s", o, oneline.Shorten(sentence(text), 300)))
	f.since(e.FirstTimestamp).sawEvent(e).saw("storageclass/"+class.Name+" .provisioner", class.Provisioner).
		saw(o.String()+" .spec.resources.requests", sizeOf(claim.Spec.Resources.Requests))
	return f.not(ProvisionerMissing, "the provisioner is missing", "it answered: the error is the provisioner's").
		not(StorageClassMissing, "the class is missing", "it exists").do(remedy)
}

// noProvisioner explains a claim whose provisioner is unknown.
func (r *Reader) noProvisioner(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) *Finding {
	if class.Provisioner == noProvisioner || r.age(claim.CreationTimestamp) < fresh {
		return nil
	}
	// A provisioner that is no CSI driver reports with an Event that it took the claim.
	if r.LastEvent(ctx, claim, claim.CreationTimestamp, "Provisioning") != nil {
		return nil
	}
	_, err := get(ctx, r, "csidrivers.storage.k8s.io", "", class.Provisioner, r.Client.StorageV1().CSIDrivers().Get)
	if unreadable(err) {
		return nil
	}
	nodes, listErr := list(ctx, r, "csinodes.storage.k8s.io", "", metav1.ListOptions{}, r.Client.StorageV1().CSINodes().List)
	if listErr != nil {
		return nil
	}
	for _, n := range nodes.Items {
		if slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == class.Provisioner }) {
			return nil
		}
	}
	driver := "exists"
	if err != nil {
		driver = "does not exist"
	}
	o := claimObject(claim)
	f := broken(ProvisionerMissing, fmt.Sprintf("the provisioner %s of the StorageClass %s, which must create the volume of %s, does not run: "+
		"no node has a driver of that name", class.Provisioner, class.Name, o))
	f.since(claim.CreationTimestamp).saw("storageclass/"+class.Name+" .provisioner", class.Provisioner)
	f.saw("csidriver/"+class.Provisioner, driver).saw("LIST csinodes", fmt.Sprintf("none of %d nodes has registered the driver", len(nodes.Items)))
	f.sawEvent(r.LastEvent(ctx, claim, claim.CreationTimestamp, "ExternalProvisioning"))
	return f.not(StorageClassMissing, "the class is missing", "it exists").not(ProvisioningFailing, "the driver fails", "there is no Event of a call").
		do("Install the driver, or check that it runs: kubelith plugin list. " +
			"Otherwise delete the claim and create it with a class whose provisioner runs.")
}

// noCapacity explains a claim for which no place reports enough space.
//
// Source: hasEnoughCapacity in k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding
func (r *Reader) noCapacity(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) *Finding {
	driver, err := get(ctx, r, "csidrivers.storage.k8s.io", "", class.Provisioner, r.Client.StorageV1().CSIDrivers().Get)
	if err != nil || !is(driver.Spec.StorageCapacity) {
		return nil
	}
	l, err := list(ctx, r, "csistoragecapacities.storage.k8s.io", "", metav1.ListOptions{}, r.Client.StorageV1().CSIStorageCapacities("").List)
	if err != nil {
		return nil
	}
	want := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	f := broken(NoCapacity, fmt.Sprintf("%s asks for %s, but no place of the StorageClass %s has that much free",
		claimObject(claim), want.String(), class.Name))
	places := 0
	for _, c := range l.Items {
		if c.StorageClassName != class.Name {
			continue
		}
		places++
		free := c.Capacity
		if c.MaximumVolumeSize != nil {
			free = c.MaximumVolumeSize
		}
		if free == nil {
			continue
		}
		if free.Cmp(want) >= 0 {
			return nil
		}
		f.saw(fmt.Sprintf("csistoragecapacity/%s", c.Name), fmt.Sprintf("%s free, %s", free.String(), metav1.FormatLabelSelector(c.NodeTopology)))
	}
	if places == 0 {
		return nil // not reported yet
	}
	return f.since(claim.CreationTimestamp).saw(claimObject(claim).String()+" .spec.resources.requests", want.String()).
		not(ProvisionerMissing, "the provisioner is missing", "it reports its free space").
		do("Free space, add a node or a disk, or delete the claim and create it with a smaller request.")
}
