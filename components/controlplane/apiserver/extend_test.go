package apiserver

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
	metricsclient "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"
	"sigs.k8s.io/metrics-server/pkg/api"

	"kubelith.io/kubelith/base/client"
)

// extendedNode is the node about which the test's extension knows something.
const extendedNode = "extended"

// testExtension is the resource metrics API with fake metrics.
func testExtension() *Extension {
	return &Extension{Scheme: api.Scheme, Install: func(core *genericapiserver.GenericAPIServer, shared informers.SharedInformerFactory) error {
		pods := cache.NewGenericLister(shared.Core().V1().Pods().Informer().GetIndexer(), corev1.Resource("pods"))
		return api.Install(figures{}, pods, shared.Core().V1().Nodes().Lister(), core, nil)
	}}
}

type figures struct{}

func (figures) GetPodMetrics(...*metav1.PartialObjectMetadata) ([]metrics.PodMetrics, error) {
	return nil, nil
}

func (figures) GetNodeMetrics(nodes ...*corev1.Node) (out []metrics.NodeMetrics, err error) {
	for _, n := range nodes {
		if n.Name == extendedNode {
			out = append(out, metrics.NodeMetrics{ObjectMeta: metav1.ObjectMeta{Name: n.Name}})
		}
	}
	return out, nil
}

// TestExtension: an API group of the process is found and served like any other, in memory and by the port, with the
// same authorization, as soon as there is an APIService for it.
func TestExtension(t *testing.T) {
	c := serve(t)
	ctx, cs := t.Context(), admin(t)
	aggregator, err := clientset.NewForConfig(c.Config(client.Metrics))
	if err != nil {
		t.Fatal(err)
	}
	services := aggregator.ApiregistrationV1().APIServices()
	eventually(t, "create the APIService", func() error {
		_, err := services.Create(ctx, &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: "v1beta1.metrics.k8s.io"},
			Spec:       apiregistrationv1.APIServiceSpec{Group: "metrics.k8s.io", Version: "v1beta1", GroupPriorityMinimum: 100, VersionPriority: 100},
		}, metav1.CreateOptions{})
		return err
	})
	if _, err := services.Get(ctx, "v1.apps", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the component reads another APIService: %v", err)
	}
	if _, err := cs.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: extendedNode}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	node := func(cfg *rest.Config) error {
		m, err := metricsclient.NewForConfig(cfg)
		if err != nil {
			return err
		}
		_, err = m.NodeMetricses().Get(ctx, extendedNode, metav1.GetOptions{})
		return err
	}
	eventually(t, "metrics in memory", func() error { return node(c.Config(client.APIServer)) })
	if err := node(c.Config(client.Scheduler)); !apierrors.IsForbidden(err) {
		t.Errorf("a user without the right: %v", err)
	}
	viewer := "extension-viewer"
	if _, err := cs.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: viewer},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregated-metrics-reader"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: viewer}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "metrics for a user who may read them", func() error { return node(c.Config(viewer)) })
	overTLS := &rest.Config{Host: shared.url, TLSClientConfig: rest.TLSClientConfig{
		CAFile: shared.pki.ClusterCA.Cert, CertFile: shared.pki.Admin.Cert, KeyFile: shared.pki.Admin.Key,
	}}
	if err := node(overTLS); err != nil {
		t.Errorf("metrics by the port: %v", err)
	}
	isDocumented(t, cs)
}

// isDocumented looks for the API group where clients do.
func isDocumented(t *testing.T, cs kubernetes.Interface) {
	t.Helper()
	groups, err := cs.Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool {
		return g.Name == "metrics.k8s.io" && g.PreferredVersion.Version == "v1beta1" && len(g.Versions) == 1
	}) {
		t.Errorf("groups: %v", groups.Groups)
	}
	resources, err := cs.Discovery().ServerResourcesForGroupVersion(v1beta1.SchemeGroupVersion.String())
	if err != nil || len(resources.APIResources) != 2 {
		t.Errorf("resources: %v, %v", resources, err)
	}
	documents, err := cs.Discovery().OpenAPIV3().Paths()
	if err != nil {
		t.Fatal(err)
	}
	group := documents["apis/metrics.k8s.io/v1beta1"]
	if group == nil {
		t.Fatal("OpenAPI has no document of the group")
	}
	document, err := group.Schema("application/json")
	if want := `"x-kubernetes-group-version-kind":[{"group":"metrics.k8s.io","kind":"NodeMetrics","version":"v1beta1"}]`; err != nil || !strings.Contains(string(document), want) {
		t.Errorf("the document of the group does not have %s: %v", want, err)
	}
}
