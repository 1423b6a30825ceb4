package storage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/container-storage-interface/spec/lib/go/csi"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

const (
	// nodeLocalKey is the annotation of CSIDrivers that says by which topology key volumes name their node. The apiserver lets
	// an agent make volumes of such a driver, on itself (components/apiserver/restriction).
	nodeLocalKey              = "kubelith.io/node-local"
	managedByLabel, managedBy = "app.kubernetes.io/managed-by", "kubelith"
	defaultClass              = "storageclass.kubernetes.io/is-default-class"
)

// makeDeclared makes the objects of a driver of which no plugin runs here, until it succeeds or ctx ends.
func (h *host) makeDeclared(ctx context.Context, declared Declared) {
	d := &driver{host: h, log: h.Log, declared: declaration{driver: declared.Driver.DeepCopy(), classes: declared.Classes, nodeLocal: true}}
	d.declared.driver.ObjectMeta = owned(d.declared.driver.ObjectMeta)
	// The error is that of ctx.
	_ = wait.PollUntilContextCancel(ctx, retryDelay, true, func(ctx context.Context) (bool, error) {
		err := d.makeObjects(ctx, facts{})
		if err != nil && ctx.Err() == nil && err.Error() != d.said {
			d.said = err.Error()
			h.Log.Warnf("next try in %s: %v", retryDelay, err)
		}
		return err == nil, nil
	})
}

// driverPatience is how long an agent waits for a CSIDriver before it says that it is missing.
const driverPoll, driverPatience = time.Second, 30 * time.Second

// declaration is what a plugin declares in Describe.
type declaration struct {
	driver    *storagev1.CSIDriver
	classes   []*storagev1.StorageClass
	nodeLocal bool
}

// Validate refuses the description of a storage plugin that cannot be one; the host of plugins calls it.
func Validate(_ string, d *pluginv1.Description) error {
	_, err := declarationOf(d)
	return err
}

func declarationOf(description *pluginv1.Description) (declaration, error) {
	s := description.GetStorage()
	if s == nil {
		return declaration{}, errors.New("it does not describe a storage plugin")
	}
	d := declaration{driver: &storagev1.CSIDriver{}, nodeLocal: s.GetNodeLocal()}
	if err := decode(s.GetCsiDriver(), d.driver); err != nil {
		return declaration{}, fmt.Errorf("csi_driver: %w", err)
	}
	if wrong := validation.IsDNS1123Subdomain(d.driver.Name); len(wrong) > 0 || len(d.driver.Name) > 63 {
		return declaration{}, fmt.Errorf("csi_driver: the name %q is no driver's: 1 to 63 lower case letters, digits, - or a dot", d.driver.Name)
	}
	d.driver.TypeMeta = metav1.TypeMeta{}
	d.driver.ObjectMeta = owned(d.driver.ObjectMeta)
	for i, text := range s.GetStorageClasses() {
		class := &storagev1.StorageClass{}
		if err := decode(text, class); err != nil {
			return declaration{}, fmt.Errorf("storage_classes[%d]: %w", i, err)
		}
		if class.Name == "" || class.Provisioner != d.driver.Name {
			return declaration{}, fmt.Errorf("storage_classes[%d]: it needs a name, and the provisioner %s", i, d.driver.Name)
		}
		class.TypeMeta = metav1.TypeMeta{}
		class.ObjectMeta = owned(class.ObjectMeta)
		d.classes = append(d.classes, class)
	}
	return d, nil
}

// decode reads an object as the API would: a field that it does not have is an error.
func decode(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

// owned is the part of the metadata that a plugin says, marked as ours.
func owned(m metav1.ObjectMeta) metav1.ObjectMeta {
	labels := map[string]string{}
	for k, v := range m.Labels {
		labels[k] = v
	}
	labels[managedByLabel] = managedBy
	return metav1.ObjectMeta{Name: m.Name, Labels: labels, Annotations: m.Annotations}
}

func isOurs(o metav1.Object) bool { return o.GetLabels()[managedByLabel] == managedBy }

// csiDriver is the object as it has to be: without somebody who attaches, nobody must wait for it.
func (d *driver) csiDriver(now facts) *storagev1.CSIDriver {
	o := d.declared.driver.DeepCopy()
	if !d.attaches(now) {
		never := false
		o.Spec.AttachRequired = &never
	}
	if key := d.nodeKey(now); key != "" && o.Annotations[nodeLocalKey] == "" {
		o.Annotations = maps.Clone(o.Annotations)
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, nodeLocalKey, key)
	}
	return o
}

// nodeKey is the topology key by whose value a node-local driver names this node; empty when it names it in another way.
func (d *driver) nodeKey(now facts) string {
	segments := now.info.GetAccessibleTopology().GetSegments()
	for _, key := range slices.Sorted(maps.Keys(segments)) {
		if d.declared.nodeLocal && segments[key] == d.NodeName {
			return key
		}
	}
	return ""
}

// attaches tells whether volumes have to be attached to a node. Those of a node-local driver are there.
func (d *driver) attaches(now facts) bool {
	return now.can(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME) && !d.declared.nodeLocal
}

// makeObjects creates the CSIDriver and the StorageClasses that are missing. Agents may not: what they need is the server's to make.
func (d *driver) makeObjects(ctx context.Context, now facts) error {
	if !d.Central {
		return d.awaitDriver(ctx, now)
	}
	if err := d.makeDriver(ctx, d.csiDriver(now)); err != nil {
		return err
	}
	for _, class := range d.declared.classes {
		if err := d.makeClass(ctx, class.DeepCopy()); err != nil {
			return err
		}
	}
	return nil
}

// awaitDriver waits until the CSIDriver is there, for as long as the server may take at its start.
func (d *driver) awaitDriver(ctx context.Context, now facts) error {
	var have *storagev1.CSIDriver
	err := wait.PollUntilContextTimeout(ctx, driverPoll, driverPatience, true, func(ctx context.Context) (_ bool, err error) {
		have, err = d.client.StorageV1().CSIDrivers().Get(ctx, d.name(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	key := d.nodeKey(now)
	switch {
	case wait.Interrupted(err) && ctx.Err() == nil:
		return fmt.Errorf("there is no CSIDriver %s, and agents do not make it: configure the plugin on the server too, or create the CSIDriver", d.name())
	case err != nil:
		return naming("read the CSIDriver", d.name(), err)
	case !d.declared.nodeLocal:
		return nil
	case key == "":
		return fmt.Errorf("it says that it is node-local: on an agent the value of a segment of accessible_topology in NodeGetInfo must be the node's name, %s", d.NodeName)
	case have.Annotations[nodeLocalKey] != key:
		return fmt.Errorf("the CSIDriver %s does not let agents make its volumes: kubectl annotate csidriver %s %s=%s", d.name(), d.name(), nodeLocalKey, key)
	}
	return nil
}

func (d *driver) makeDriver(ctx context.Context, want *storagev1.CSIDriver) error {
	drivers := d.client.StorageV1().CSIDrivers()
	_, err := drivers.Create(ctx, want, metav1.CreateOptions{})
	if err == nil || !apierrors.IsAlreadyExists(err) {
		return naming("make the CSIDriver", want.Name, err)
	}
	have, err := drivers.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return naming("read the CSIDriver", want.Name, err)
	}
	if !isOurs(have) {
		return fmt.Errorf("the CSIDriver %s is somebody else's: remove that driver and its CSIDriver, or this plugin", want.Name)
	}
	changed := have.DeepCopy()
	overlay(&changed.Spec, want.Spec)
	if key := want.Annotations[nodeLocalKey]; key != "" {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, nodeLocalKey, key)
	}
	if equality.Semantic.DeepEqual(changed, have) {
		return nil
	}
	_, err = drivers.Update(ctx, changed, metav1.UpdateOptions{})
	if apierrors.IsInvalid(err) {
		d.log.Warnf("the CSIDriver %s stays as it was: delete it to have it made anew (%v)", want.Name, err)
		return nil
	}
	return naming("change the CSIDriver", want.Name, err)
}

// overlay sets what is given; the API has set the rest to its defaults.
func overlay(spec *storagev1.CSIDriverSpec, given storagev1.CSIDriverSpec) {
	text, err := json.Marshal(given)
	if err == nil {
		err = json.Unmarshal(text, spec)
	}
	if err != nil {
		panic(err) // a struct of the API is always JSON
	}
}

// makeClass creates a StorageClass that is missing. One that exists is left as it is: people may have changed it.
func (d *driver) makeClass(ctx context.Context, want *storagev1.StorageClass) error {
	classes := d.client.StorageV1().StorageClasses()
	have, err := classes.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case err == nil && have.Provisioner == d.name():
		return nil
	case err == nil:
		d.log.Warnf("the StorageClass %s is of %s: the one of %s is not made", want.Name, have.Provisioner, d.name())
		return nil
	case !apierrors.IsNotFound(err):
		return naming("read the StorageClass", want.Name, err)
	}
	if want.Annotations[defaultClass] == "true" {
		taken, err := hasDefault(ctx, d.client)
		if err != nil {
			return naming("make the StorageClass", want.Name, err)
		}
		if taken != "" {
			delete(want.Annotations, defaultClass)
			d.log.Infof("the StorageClass %s is not the default: %s is", want.Name, taken)
		}
	}
	_, err = classes.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // another node was first
	}
	return naming("make the StorageClass", want.Name, err)
}

// hasDefault returns the name of a default StorageClass.
func hasDefault(ctx context.Context, cs kubernetes.Interface) (string, error) {
	all, err := cs.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(all.Items, func(c storagev1.StorageClass) bool { return c.Annotations[defaultClass] == "true" })
	if i < 0 {
		return "", nil
	}
	return all.Items[i].Name, nil
}

// naming says what failed, if anything did.
func naming(what, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", what, name, err)
}
