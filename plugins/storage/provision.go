package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sort"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/external-provisioner/v6/pkg/capacity"
	"github.com/kubernetes-csi/external-provisioner/v6/pkg/capacity/topology"
	ctrl "github.com/kubernetes-csi/external-provisioner/v6/pkg/controller"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	csitrans "k8s.io/csi-translation-lib"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

const (
	// ownBaseDelay and ownMaxDelay bound how long a node waits before it takes a claim that is bound immediately and
	// any node may have: less than the sidecar's 20 s to 60 s, as few nodes wait for the same.
	ownBaseDelay, ownMaxDelay = 2 * time.Second, 30 * time.Second
	// capacityEvery is how often free space is queried; it is queried after each volume too.
	capacityEvery = time.Minute
)

// addProvisioning adds what creates and deletes volumes, as external-provisioner's main does (cmd/csi-provisioner).
func (c *controllers) addProvisioning(ctx context.Context) error {
	if !c.facts.can(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME) {
		return nil
	}
	claims, classes := c.view.Core().V1().PersistentVolumeClaims(), c.view.Storage().V1().StorageClasses()
	volumes := c.view.Core().V1().PersistentVolumes()
	var attachments storagelisters.VolumeAttachmentLister
	if c.facts.Attaches(c.Declaration) {
		attachments = c.view.Storage().V1().VolumeAttachments().Lister()
		c.needs(c.view.Storage().V1().VolumeAttachments().Informer())
	}
	creator := "kubelith-" + c.Name()
	var local *ctrl.NodeDeployment
	if c.NodeLocal {
		creator += "-" + c.NodeName
		local = &ctrl.NodeDeployment{NodeName: c.NodeName, ClaimInformer: claims, NodeInfo: c.facts.Info, ImmediateBinding: true,
			BaseDelay: ownBaseDelay, MaxDelay: ownMaxDelay}
	}
	csiNodes, nodes := c.topology()
	var placed ctrl.TopologyProvider
	if ctrl.SupportsTopology(c.facts.Identity) {
		placed = ctrl.NewInMemoryStore()
	}
	provisioner := ctrl.NewCSIProvisioner(c.Client, callTimeout, creator, "pvc", -1, c.conn, c.Snapshots, c.Name(),
		c.facts.Identity, c.facts.Controller, "", false, true, csitrans.New(), classes.Lister(), csiNodes, nodes, claims.Lister(), attachments, nil,
		true, "", local, false, true, placed)
	c.broadcasts(provisioner)
	if c.tellsCapacity() {
		provisioner = capacity.NewProvisionWrapper(provisioner, c.addCapacity())
	}
	provisioning := controller.NewProvisionController(ctx, c.Client, c.Name(), provisioner,
		controller.LeaderElection(false),
		controller.FailedProvisionThreshold(0),
		controller.FailedDeleteThreshold(0),
		controller.RateLimiter(backoff()),
		controller.RetryIntervalMax(retryMax),
		controller.Threadiness(workers),
		controller.CreateProvisionedPVLimiter(workqueue.DefaultTypedControllerRateLimiter[string]()),
		controller.ResyncPeriod(0), // the shared informers have their own; nothing here relies on it
		controller.ClaimsInformer(claims.Informer()),
		controller.VolumesInformer(volumes.Informer()),
		controller.ClassesInformer(classes.Informer()),
		controller.AddFinalizer(true),
	)
	for _, i := range []cache.SharedIndexInformer{claims.Informer(), volumes.Informer(), classes.Informer()} {
		c.needs(i)
	}
	var workers sync.WaitGroup
	provisioning.ControllerWaitGroup(&workers)
	c.run(func(ctx context.Context) {
		provisioning.Run(ctx)
		workers.Wait() // a volume that is being created belongs to this run
	})
	// It returns nil for a driver that does not clone.
	if cloning := ctrl.NewCloningProtectionController(c.Client, claims.Lister(), claims.Informer(), c.queue("claims"), c.facts.Controller); cloning != nil {
		c.run(func(ctx context.Context) { cloning.Run(ctx, 1, nil) })
	}
	return nil
}

// tellsCapacity reports whether the scheduler learns how much space is free. It needs none of a machine without a Node.
func (c *controllers) tellsCapacity() bool {
	wanted := c.Driver.Declaration.Driver.Spec.StorageCapacity
	return wanted != nil && *wanted && c.facts.can(csi.ControllerServiceCapability_RPC_GET_CAPACITY) && (!c.NodeLocal || c.facts.NodeUID != "")
}

// topology has what the provisioner queries for the places of volumes: all nodes or, when the driver is node-local,
// this one as the driver describes it.
func (c *controllers) topology() (storagelisters.CSINodeLister, corelisters.NodeLister) {
	if !ctrl.SupportsTopology(c.facts.Identity) {
		return nil, nil
	}
	if !c.NodeLocal {
		csiNodes, nodes := c.view.Storage().V1().CSINodes(), c.view.Core().V1().Nodes()
		c.needs(csiNodes.Informer())
		c.needs(nodes.Informer())
		return csiNodes.Lister(), nodes.Lister()
	}
	segments := c.facts.Info.GetAccessibleTopology().GetSegments()
	keys := make([]string, 0, len(segments))
	for key := range segments {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	csiNodes, nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	meta := metav1.ObjectMeta{Name: c.NodeName}
	_ = csiNodes.Add(&storagev1.CSINode{ObjectMeta: meta, Spec: storagev1.CSINodeSpec{
		Drivers: []storagev1.CSINodeDriver{{Name: c.Name(), NodeID: c.facts.Info.GetNodeId(), TopologyKeys: keys}},
	}})
	meta.Labels = segments
	_ = nodes.Add(&corev1.Node{ObjectMeta: meta})
	return storagelisters.NewCSINodeLister(csiNodes), corelisters.NewNodeLister(nodes)
}

// addCapacity adds what reports to the scheduler how much space is left, in CSIStorageCapacity objects.
func (c *controllers) addCapacity() *capacity.Controller {
	var places topology.Informer
	var owner *metav1.OwnerReference
	writer := "kubelith"
	if c.NodeLocal {
		writer = labelValue(writer + "-" + c.NodeName)
		// A node that is removed does not come back to remove them: the garbage collector does.
		owner = &metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: c.NodeName, UID: c.facts.NodeUID, Controller: ptr.To(true)}
		var segment topology.Segment
		for key, value := range c.facts.Info.GetAccessibleTopology().GetSegments() {
			segment = append(segment, topology.SegmentEntry{Key: key, Value: value})
		}
		sort.Sort(segment)
		places = topology.NewFixedNodeTopology(&segment)
	} else {
		places = topology.NewNodeTopology(c.Name(), c.Client, c.view.Core().V1().Nodes(), c.view.Storage().V1().CSINodes(), c.queue("csitopology"))
	}
	// Ours alone: those of other nodes and drivers are theirs to keep.
	own := informers.NewSharedInformerFactoryWithOptions(c.Client, 0, informers.WithNamespace(metav1.NamespaceSystem),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = labels.Set{capacity.DriverNameLabel: c.Name(), capacity.ManagedByLabel: writer}.String()
		}))
	free := capacity.NewCentralCapacityController(csi.NewControllerClient(c.conn), c.Name(), capacity.NewV1ClientFactory(c.Client),
		workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.NewTypedItemExponentialFailureRateLimiter[capacity.QueueKey](retryMin, retryMax),
			workqueue.TypedRateLimitingQueueConfig[capacity.QueueKey]{Name: "csistoragecapacity"}),
		owner, writer, metav1.NamespaceSystem, places, c.view.Storage().V1().StorageClasses(), own.Storage().V1().CSIStorageCapacities(),
		capacityEvery, false, callTimeout)
	c.run(places.RunWorker)
	c.run(func(ctx context.Context) {
		own.Start(ctx.Done())
		free.Run(ctx, 1, nil)
		own.Shutdown()
	})
	return free
}

// labelValue is the text or, when it is too long for a label, its beginning and a hash of it.
func labelValue(text string) string {
	if len(text) <= validation.LabelValueMaxLength {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return text[:validation.LabelValueMaxLength-9] + "-" + hex.EncodeToString(sum[:4])
}
