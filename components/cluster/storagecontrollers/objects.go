package storagecontrollers

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/sirupsen/logrus"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/plugins/storage"
)

const defaultClass = "storageclass.kubernetes.io/is-default-class"

// objects creates what a driver declares.
type objects struct {
	client kubernetes.Interface
	node   string // this server's
	log    logrus.FieldLogger
}

func (t *term) objects(log logrus.FieldLogger) objects {
	return objects{t.clients.Client, t.NodeName, log}
}

// makeDeclared creates the objects of a driver whose plugin does not run here, until it succeeds or ctx ends.
func (t *term) makeDeclared(ctx context.Context, d storage.Declaration) {
	var said logging.Once
	// The error is ctx's.
	_ = wait.PollUntilContextCancel(ctx, storage.RetryDelay, true, func(ctx context.Context) (bool, error) {
		err := t.objects(t.Log).make(ctx, d, storage.Facts{})
		if err != nil && ctx.Err() == nil && said.News(d.Name(), err.Error()) {
			t.Log.Warnf("retrying in %s: %v", storage.RetryDelay, err)
		}
		return err == nil, nil
	})
}

// make creates the CSIDriver and the StorageClasses that are missing.
func (m objects) make(ctx context.Context, d storage.Declaration, now storage.Facts) error {
	if err := m.makeDriver(ctx, m.csiDriver(d, now)); err != nil {
		return err
	}
	for _, class := range d.Classes {
		if err := m.makeClass(ctx, class.DeepCopy()); err != nil {
			return err
		}
	}
	return nil
}

// csiDriver returns the wanted object: without an attacher, attachRequired is false, so that pods do not wait for it.
func (m objects) csiDriver(d storage.Declaration, now storage.Facts) *storagev1.CSIDriver {
	o := d.Driver.DeepCopy()
	if !now.Attaches(d) {
		never := false
		o.Spec.AttachRequired = &never
	}
	if key := now.NodeKey(d, m.node); key != "" && o.Annotations[names.NodeLocalAnnotation] == "" {
		o.Annotations = maps.Clone(o.Annotations)
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, names.NodeLocalAnnotation, key)
	}
	return o
}

func (m objects) makeDriver(ctx context.Context, want *storagev1.CSIDriver) error {
	drivers := m.client.StorageV1().CSIDrivers()
	_, err := drivers.Create(ctx, want, metav1.CreateOptions{})
	if err == nil || !apierrors.IsAlreadyExists(err) {
		return naming("create CSIDriver", want.Name, err)
	}
	have, err := drivers.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return naming("read CSIDriver", want.Name, err)
	}
	if !storage.IsOurs(have) {
		return &storage.ForeignError{Driver: want.Name}
	}
	changed := have.DeepCopy()
	overlay(&changed.Spec, want.Spec)
	if key := want.Annotations[names.NodeLocalAnnotation]; key != "" {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, names.NodeLocalAnnotation, key)
	}
	if equality.Semantic.DeepEqual(changed, have) {
		return nil
	}
	_, err = drivers.Update(ctx, changed, metav1.UpdateOptions{})
	if apierrors.IsInvalid(err) {
		m.log.Warnf("CSIDriver %s is unchanged: delete it to have it created again (%v)", want.Name, err)
		return nil
	}
	return naming("update CSIDriver", want.Name, err)
}

// overlay sets the given fields; the API has set the rest to its defaults.
func overlay(spec *storagev1.CSIDriverSpec, given storagev1.CSIDriverSpec) {
	text, err := json.Marshal(given)
	if err == nil {
		err = json.Unmarshal(text, spec)
	}
	if err != nil {
		panic(err) // a struct of the API is always valid JSON
	}
}

// makeClass creates a StorageClass that is missing. An existing one stays: users may have changed it.
func (m objects) makeClass(ctx context.Context, want *storagev1.StorageClass) error {
	classes := m.client.StorageV1().StorageClasses()
	have, err := classes.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case err == nil && have.Provisioner == want.Provisioner:
		return nil
	case err == nil:
		m.log.Warnf("StorageClass %s already exists with provisioner %s: not created for %s", want.Name, have.Provisioner, want.Provisioner)
		return nil
	case !apierrors.IsNotFound(err):
		return naming("read StorageClass", want.Name, err)
	}
	if want.Annotations[defaultClass] == "true" {
		taken, err := hasDefault(ctx, m.client)
		if err != nil {
			return naming("create StorageClass", want.Name, err)
		}
		if taken != "" {
			delete(want.Annotations, defaultClass)
			m.log.Infof("StorageClass %s does not become the default: %s already is", want.Name, taken)
		}
	}
	_, err = classes.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // another node created it first
	}
	return naming("create StorageClass", want.Name, err)
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

// naming names the failed operation in err, if there is one.
func naming(what, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", what, name, err)
}
