// Package storagewrap wraps the storage of every type that the API server stores, built-in and custom.
package storagewrap

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
)

// Options returns options whose storage is upstream's, wrapped by wrap. Types without storage of this kind stay as they
// are.
func Options(options generic.RESTOptionsGetter, wrap func(schema.GroupResource, generic.StorageDecorator) generic.StorageDecorator) generic.RESTOptionsGetter {
	if options == nil {
		return nil
	}
	return &getter{options, wrap}
}

type getter struct {
	generic.RESTOptionsGetter
	wrap func(schema.GroupResource, generic.StorageDecorator) generic.StorageDecorator
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (g *getter) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := g.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err == nil && options.Decorator != nil {
		options.Decorator = g.wrap(resource, options.Decorator)
	}
	return options, err
}
