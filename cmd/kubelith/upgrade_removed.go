package kubelith

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/clientcmd"

	"kubelith.io/kubelith/host/upgrade"
)

// removedAPIs returns, one line each, the APIs in use that another version of Kubernetes does not serve any more: those
// of which the API server has served requests since it started, and those with which an object that exists was written.
//
// Sources: https://kubernetes.io/blog/2020/09/03/warnings/, the metric; the types' APILifecycleRemoved.
func removedAPIs(ctx context.Context, cs kubernetes.Interface, kubeconfig string, from, to upgrade.Program) ([]string, error) {
	text, err := cs.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("the API's metrics: %w", err)
	}
	used, err := requestedRemoved(text, to.Kubernetes)
	if err != nil {
		return nil, err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	objects, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	removed, err := removedKinds(from.Kubernetes, to.Kubernetes)
	if err != nil {
		return nil, err
	}
	for _, kind := range removed {
		line, err := writtenWith(ctx, cs, objects, kind, removed)
		if err != nil {
			return nil, err
		}
		if line != "" {
			used = append(used, line)
		}
	}
	slices.Sort(used)
	return used, nil
}

// refuseRemoved is the error for APIs in use, unless they may be removed.
func refuseRemoved(used []string, to upgrade.Program, allowed bool) error {
	if len(used) == 0 || allowed {
		return nil
	}
	return fmt.Errorf("the new program (Kubernetes %s) does not have APIs that are in use: %s: change what uses them, or give --%s",
		to.Kubernetes, strings.Join(used, "; "), allowRemoved)
}

// labelOf matches a label of a metric.
var labelOf = regexp.MustCompile(`(\w+)="([^"]*)"`)

// requestedRemoved reads the metric of deprecated APIs that were requested.
func requestedRemoved(metrics []byte, to string) ([]string, error) {
	next, err := version.ParseGeneric(to)
	if err != nil {
		return nil, err
	}
	var used []string
	lines := bufio.NewScanner(bytes.NewReader(metrics))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		rest, found := strings.CutPrefix(lines.Text(), "apiserver_requested_deprecated_apis{")
		if !found || strings.HasSuffix(rest, " 0") {
			continue
		}
		label := map[string]string{}
		for _, m := range labelOf.FindAllStringSubmatch(rest, -1) {
			label[m[1]] = m[2]
		}
		removed, err := version.ParseGeneric(label["removed_release"])
		if err != nil || next.LessThan(removed) { // it has no end yet
			continue
		}
		resource := label["resource"]
		if label["subresource"] != "" {
			resource += "/" + label["subresource"]
		}
		gv := schema.GroupVersion{Group: label["group"], Version: label["version"]}
		used = append(used, fmt.Sprintf("%s of %s was requested", resource, gv))
	}
	return used, lines.Err()
}

// removedKinds are the kinds that Kubernetes serves up to one version, and not in another.
func removedKinds(from, to string) ([]schema.GroupVersionKind, error) {
	before, err := version.ParseGeneric(from)
	if err != nil {
		return nil, err
	}
	after, err := version.ParseGeneric(to)
	if err != nil {
		return nil, err
	}
	var kinds []schema.GroupVersionKind
	for kind := range scheme.Scheme.AllKnownTypes() {
		object, err := scheme.Scheme.New(kind)
		if err != nil {
			return nil, err
		}
		of, ok := object.(interface{ APILifecycleRemoved() (major, minor int) })
		if !ok || meta.IsListType(object) {
			continue
		}
		major, minor := of.APILifecycleRemoved()
		if removed := version.MajorMinor(uint(major), uint(minor)); before.LessThan(removed) && after.AtLeast(removed) {
			kinds = append(kinds, kind)
		}
	}
	return kinds, nil
}

// writtenWith returns a line about objects that were last written with this version of their API, or "". It reads them
// with another version, as a request with this one would count as a use of it. A kind that has no other is left to the
// metric.
func writtenWith(
	ctx context.Context, cs kubernetes.Interface, objects metadata.Interface,
	kind schema.GroupVersionKind, removed []schema.GroupVersionKind,
) (string, error) {
	resource, err := servedOtherwise(cs, kind, removed)
	if err != nil || resource.Resource == "" {
		return "", err
	}
	count, example := 0, ""
	withThis := func(m metav1.ManagedFieldsEntry) bool { return m.APIVersion == kind.GroupVersion().String() }
	list := metav1.ListOptions{Limit: 500}
	for {
		page, err := objects.Resource(resource).List(ctx, list)
		if err != nil {
			return "", fmt.Errorf("list %s: %w", resource.Resource, err)
		}
		for _, o := range page.Items {
			if slices.ContainsFunc(o.ManagedFields, withThis) {
				if count++; example == "" {
					example = strings.TrimPrefix(o.Namespace+"/"+o.Name, "/")
				}
			}
		}
		if list.Continue = page.Continue; list.Continue == "" {
			break
		}
	}
	if count == 0 {
		return "", nil
	}
	return fmt.Sprintf("objects (%d, such as %s) were written as %s of %s", count, example, resource.Resource, kind.GroupVersion()), nil
}

// servedOtherwise returns the resource of a kind in a version that stays; empty if there is none.
func servedOtherwise(cs kubernetes.Interface, kind schema.GroupVersionKind, removed []schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	groups, err := cs.Discovery().ServerGroups()
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	for _, group := range groups.Groups {
		if group.Name != kind.Group {
			continue
		}
		for _, v := range group.Versions {
			other := schema.GroupVersionKind{Group: group.Name, Version: v.Version, Kind: kind.Kind}
			if slices.Contains(removed, other) {
				continue
			}
			served, err := cs.Discovery().ServerResourcesForGroupVersion(v.GroupVersion)
			if err != nil {
				return schema.GroupVersionResource{}, err
			}
			for _, r := range served.APIResources {
				if r.Kind == kind.Kind && !strings.Contains(r.Name, "/") && slices.Contains(r.Verbs, "list") {
					return other.GroupVersion().WithResource(r.Name), nil
				}
			}
		}
	}
	return schema.GroupVersionResource{}, nil
}
