package initializers

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// APIService keeps the version of the custom resource behind upstream's in its group. Upstream's own for a custom
// resource comes before: clients would prefer it. Source: apiVersionPriorities in
// k8s.io/kubernetes/pkg/controlplane/apiserver.
func APIService() *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: configurationVersion.Version + "." + configurationVersion.Group},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: configurationVersion.Group, Version: configurationVersion.Version, GroupPriorityMinimum: 16700, VersionPriority: 9,
		},
	}
}

// Definition is the custom resource InitializerConfiguration.
func Definition() *apiextensionsv1.CustomResourceDefinition {
	list := func(of *apiextensionsv1.JSONSchemaProps, description string) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{Type: "array", Description: description, Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: of}}
	}
	object := func(description string, properties map[string]apiextensionsv1.JSONSchemaProps, required ...string) *apiextensionsv1.JSONSchemaProps {
		return &apiextensionsv1.JSONSchemaProps{Type: "object", Description: description, Properties: properties, Required: required}
	}
	text := &apiextensionsv1.JSONSchemaProps{Type: "string"}
	rule := object("A rule matches new objects by their resource.", map[string]apiextensionsv1.JSONSchemaProps{
		"apiGroups":   list(text, `API groups; "" is the core group, "*" is all.`),
		"apiVersions": list(text, `API versions; "*" is all.`),
		"resources":   list(text, `Resources, without subresources; "*" is all.`),
	})
	const does = "An initializer acts on new objects that one of its rules matches, before other clients see them."
	initializer := object(does, map[string]apiextensionsv1.JSONSchemaProps{
		"name":  {Type: "string", Description: "A fully qualified name: podimage.example.com."},
		"rules": list(rule, "The objects that are initialized."),
	}, "name")
	names := apiextensionsv1.CustomResourceDefinitionNames{
		Plural: configurationResource.Resource, Singular: "initializerconfiguration", Kind: "InitializerConfiguration", ListKind: "InitializerConfigurationList",
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Name:        configurationResource.String(),
			Annotations: map[string]string{"api-approved.kubernetes.io": "unapproved, Kubernetes removed the type in 1.14"},
		},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: configurationVersion.Group, Names: names, Scope: apiextensionsv1.ClusterScoped,
			Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: configurationVersion.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: object(
					"InitializerConfiguration names the initializers of new objects, in the order in which they act.",
					map[string]apiextensionsv1.JSONSchemaProps{
						"apiVersion": {Type: "string"}, "kind": {Type: "string"}, "metadata": {Type: "object"},
						"initializers": list(initializer, "The initializers of the objects that their rules match."),
					})},
			}},
		},
	}
}
