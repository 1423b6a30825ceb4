package storage

import (
	"errors"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/plugins"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// Declaration is what a plugin declares in Describe. Its objects are marked as ours.
type Declaration struct {
	Driver  *storagev1.CSIDriver
	Classes []*storagev1.StorageClass
	// NodeLocal reports that a volume is on one node, and that the plugin of that node creates it.
	NodeLocal bool
}

// Declare returns the declaration with these objects.
func Declare(driver *storagev1.CSIDriver, classes []*storagev1.StorageClass, nodeLocal bool) Declaration {
	d := Declaration{Driver: driver.DeepCopy(), NodeLocal: nodeLocal}
	d.Driver.TypeMeta, d.Driver.ObjectMeta = metav1.TypeMeta{}, owned(driver.ObjectMeta)
	for _, class := range classes {
		class = class.DeepCopy()
		class.TypeMeta, class.ObjectMeta = metav1.TypeMeta{}, owned(class.ObjectMeta)
		d.Classes = append(d.Classes, class)
	}
	return d
}

// Name is the driver's.
func (d Declaration) Name() string { return d.Driver.Name }

// Validate refuses the description of a storage plugin that cannot be one; the host of plugins calls it.
func Validate(_ string, d *pluginv1.Description) error {
	_, err := declarationOf(d)
	return err
}

func declarationOf(description *pluginv1.Description) (Declaration, error) {
	s := description.GetStorage()
	if s == nil {
		return Declaration{}, errors.New("it does not describe a storage plugin")
	}
	driver := &storagev1.CSIDriver{}
	if err := plugins.Decode(s.GetCsiDriver(), driver); err != nil {
		return Declaration{}, fmt.Errorf("csi_driver: %w", err)
	}
	if wrong := validation.IsDNS1123Subdomain(driver.Name); len(wrong) > 0 || len(driver.Name) > 63 {
		return Declaration{}, fmt.Errorf("csi_driver: %q is not a valid driver name: use 1 to 63 lower case letters, digits, - or a dot", driver.Name)
	}
	var classes []*storagev1.StorageClass
	for i, text := range s.GetStorageClasses() {
		class := &storagev1.StorageClass{}
		if err := plugins.Decode(text, class); err != nil {
			return Declaration{}, fmt.Errorf("storage_classes[%d]: %w", i, err)
		}
		if class.Name == "" || class.Provisioner != driver.Name {
			return Declaration{}, fmt.Errorf("storage_classes[%d]: it needs a name, and the provisioner %s", i, driver.Name)
		}
		classes = append(classes, class)
	}
	return Declare(driver, classes, s.GetNodeLocal()), nil
}

// owned is the part of the metadata that a plugin declares, marked as ours.
func owned(m metav1.ObjectMeta) metav1.ObjectMeta {
	labels := map[string]string{}
	for k, v := range m.Labels {
		labels[k] = v
	}
	labels[names.ManagedByLabel] = names.ManagedBy
	return metav1.ObjectMeta{Name: m.Name, Labels: labels, Annotations: m.Annotations}
}

// IsOurs reports whether Kubelith created the object.
func IsOurs(o metav1.Object) bool { return o.GetLabels()[names.ManagedByLabel] == names.ManagedBy }

// ForeignError reports that the CSIDriver of a plugin's name is not ours.
type ForeignError struct{ Driver string }

func (e *ForeignError) Error() string {
	return fmt.Sprintf("the CSIDriver %s belongs to another driver: remove that driver and its CSIDriver, or this plugin", e.Driver)
}
