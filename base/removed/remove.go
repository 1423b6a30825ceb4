package removed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"

	"kubelith.io/kubelith/base/names"
)

// ServerLabel is on the Nodes of servers. The API server forbids nodes to set it on themselves.
const ServerLabel = "node-role.kubernetes.io/control-plane"

// propagation is how long the API server may take until it refuses the node. Until then the node can create its Node
// again.
const propagation = 500 * time.Millisecond

// ErrNoNode means that there is no Node of that name.
var ErrNoNode = errors.New("there is no such node")

// Remove shuts the node out, and then removes it: its Node, its pods, whose tokens become void, its certificate
// requests and the reservation of its name. Without a Node it does so only when force is set, and returns ErrNoNode
// otherwise. After an error it can be called again, with force.
//
// token is the id of the token with which its machine joined, if that still exists: anyone with access to the machine
// may know it.
func Remove(ctx context.Context, cs kubernetes.Interface, name string, force bool) (token string, err error) {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return "", fmt.Errorf("%q cannot be a node's name: kubelith kubectl get nodes shows the names", name)
	}
	if token, err = tokenOf(ctx, cs, name); err != nil {
		return "", err
	}
	return token, remove(ctx, cs, name, force)
}

// tokenOf returns the id of the token by which a name was reserved; empty when there is no such reservation or token.
func tokenOf(ctx context.Context, cs kubernetes.Interface, name string) (string, error) {
	reservation, err := cs.CoreV1().ConfigMaps(namespace).Get(ctx, names.ReservationPrefix+name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && reservation.Data[names.ReservationToken] == "" {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the reservation of the name %s: %w", name, err)
	}
	id := reservation.Data[names.ReservationToken]
	_, err = cs.CoreV1().Secrets(namespace).Get(ctx, bootstrapapi.BootstrapTokenSecretPrefix+id, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the token %s: %w", id, err)
	}
	return id, nil
}

func remove(ctx context.Context, cs kubernetes.Interface, name string, force bool) error {
	node, err := cs.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && !force:
		return ErrNoNode
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("read the node %s: %w", name, err)
	case err == nil && hasLabel(node, ServerLabel):
		if gone, err := isRecorded(ctx, cs, name); err != nil {
			return err
		} else if !gone {
			return fmt.Errorf("the node %s is a server: run kubelith etcd remove %[1]s first", name)
		}
	}
	if _, err := Record(ctx, cs, name); err != nil {
		return err
	}
	for _, step := range []struct {
		what string
		do   func(context.Context, kubernetes.Interface, string) error
	}{
		{"delete the node", deleteNode},
		{"delete the pods of the node", deletePods},
		{"delete the certificate requests of the node", deleteRequests},
		{"free the name", deleteReservation},
	} {
		if err := step.do(ctx, cs, name); err != nil {
			return fmt.Errorf("the credentials of node %s are revoked, but it is not removed: %s: %w: run kubelith node remove --force %[1]s", name, step.what, err)
		}
	}
	return nil
}

func hasLabel(node *corev1.Node, label string) bool {
	_, ok := node.Labels[label]
	return ok
}

// isRecorded reports whether the node was shut out before: a server is, when it is no longer one.
func isRecorded(ctx context.Context, cs kubernetes.Interface, name string) (bool, error) {
	all, err := cs.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("type", string(secretType)).String()})
	if err != nil {
		return false, fmt.Errorf("read the removed nodes: %w", err)
	}
	return slices.ContainsFunc(all.Items, func(s corev1.Secret) bool { return s.Type == secretType && string(s.Data[nodeKey]) == name }), nil
}

// Record shuts the node out: from now on, what proved its identity before is refused. It returns what withdraws that,
// for a removal that fails.
func Record(ctx context.Context, cs kubernetes.Interface, name string) (withdraw func(context.Context) error, err error) {
	created, err := cs.CoreV1().Secrets(namespace).Create(ctx, record(name), metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("revoke the credentials of node %s: %w", name, err)
	}
	return func(ctx context.Context) error {
		return cs.CoreV1().Secrets(namespace).Delete(ctx, created.Name, metav1.DeleteOptions{})
	}, nil
}

func record(node string) *corev1.Secret {
	immutable := true
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "kubelith-removed-"},
		Type:       secretType,
		Immutable:  &immutable,
		Data:       map[string][]byte{nodeKey: []byte(node)},
	}
}

// deleteNode deletes the Node, and again if the node has just created another one.
func deleteNode(ctx context.Context, cs kubernetes.Interface, name string) error {
	until := time.Now().Add(propagation)
	return wait.PollUntilContextCancel(ctx, propagation/5, true, func(ctx context.Context) (bool, error) {
		late := time.Now().After(until)
		err := cs.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return false, err
		}
		return late && err != nil, nil
	})
}

// deletePods deletes without grace: no kubelet would confirm that they ended.
func deletePods(ctx context.Context, cs kubernetes.Interface, node string) error {
	pods, err := cs.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return err
	}
	var errs []error
	for i := range pods.Items {
		p := &pods.Items[i]
		options := metav1.NewDeleteOptions(0)
		options.Preconditions = metav1.NewUIDPreconditions(string(p.UID))
		if err := cs.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, *options); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func deleteRequests(ctx context.Context, cs kubernetes.Interface, node string) error {
	client := cs.CertificatesV1().CertificateSigningRequests()
	requests, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for i := range requests.Items {
		if requests.Items[i].Spec.Username != names.NodeUserPrefix+node {
			continue
		}
		if err := client.Delete(ctx, requests.Items[i].Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func deleteReservation(ctx context.Context, cs kubernetes.Interface, node string) error {
	err := cs.CoreV1().ConfigMaps(namespace).Delete(ctx, names.ReservationPrefix+node, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
