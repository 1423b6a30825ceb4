package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	fakedefinitions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	fakeservices "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/fake"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/lifecycle"
)

// bootstrapped is a cluster as the bootstrap leaves it, without the record of the requests so far.
func bootstrapped(t *testing.T) *fake.Clientset {
	t.Helper()
	cs := fake.NewClientset()
	if left := pass(t, cs); len(left) > 0 {
		t.Fatal(left)
	}
	cs.ClearActions()
	return cs
}

// bootstrapOf creates all objects in a cluster; the log is in out.
func bootstrapOf(cs kubernetes.Interface) (b *bootstrap, out *bytes.Buffer) {
	log, out := logrus.New(), &bytes.Buffer{}
	log.SetOutput(out)
	return &bootstrap{log: log, hooks: new(lifecycle.Goroutines), compare: func(ctx context.Context) ([]change, []error) {
		return compare(ctx, clientsOf(cs), wantedObjects(&Options{}, true))
	}}, out
}

// others are the CustomResourceDefinitions and APIServices of the fake clusters.
var others sync.Map

// clientsOf adds them to a fake cluster.
func clientsOf(cs kubernetes.Interface) clients {
	if all, ok := cs.(clients); ok {
		return all
	}
	fakes, _ := others.LoadOrStore(cs, clients{cs, fakedefinitions.NewClientset(), fakeservices.NewSimpleClientset()})
	return fakes.(clients)
}

// clientsFor are the clients of a real API server.
func clientsFor(t *testing.T, c *rest.Config) clients {
	t.Helper()
	cs, err := newClients(c)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// pass is one pass of the bootstrap.
func pass(t *testing.T, cs kubernetes.Interface) []error {
	b, _ := bootstrapOf(cs)
	return b.pass(t.Context(), make(chan struct{}, 1))
}

// writes are the requests of a fake cluster that are no lists.
func writes(cs *fake.Clientset) (all []string) {
	for _, action := range cs.Actions() {
		if action.GetVerb() != "list" {
			all = append(all, action.GetVerb()+" "+action.GetResource().Resource)
		}
	}
	return all
}

// TestBootstrapWritesWhatDiffers: what is right is read, by one list of each kind, and not written: a webhook that
// refuses every write has nothing to refuse at a restart.
func TestBootstrapWritesWhatDiffers(t *testing.T) {
	cs := bootstrapped(t)
	if left := pass(t, cs); len(left) > 0 {
		t.Fatal(left)
	}
	if w := writes(cs); len(w) > 0 {
		t.Errorf("nothing differs, and it writes %v", w)
	}
	if n := len(cs.Actions()); n > 8 {
		t.Errorf("%d requests to read", n)
	}

	ctx := t.Context()
	if err := cs.RbacV1().ClusterRoles().Delete(ctx, client.DNS, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	cs.ClearActions()
	pass(t, cs)
	if got := strings.Join(writes(cs), ", "); got != "create clusterroles" {
		t.Errorf("one role is missing, and it writes %s", got)
	}
}

// refuseWrites makes a fake cluster refuse all writes, as an admission webhook without a server does, until it is
// deleted.
func refuseWrites(cs *fake.Clientset) (remove func()) {
	var mu sync.Mutex
	refuses := true
	cs.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if !refuses || action.GetVerb() == "list" {
			return false, nil, nil
		}
		return true, nil, apierrors.NewInternalError(errors.New("failed calling webhook: connection refused"))
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		refuses = false
	}
}

// TestBootstrapWaitsForAdmission: what a webhook refuses does not hold up the start. It is tried until it is written.
func TestBootstrapWaitsForAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cs := bootstrapped(t)
		for _, name := range []string{client.DNS, client.Storage} {
			if err := cs.RbacV1().ClusterRoles().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		remove := refuseWrites(cs)
		b, out := bootstrapOf(cs)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		b.start(ctx)
		if took := time.Since(began); took > time.Second {
			t.Errorf("the start waited for %s", took)
		}
		time.Sleep(10 * time.Minute)
		if n := strings.Count(out.String(), "cannot write 2 of the objects"); n < 5 || n > 20 {
			t.Errorf("%d warnings in ten minutes:\n%s", n, out)
		}
		remove()
		time.Sleep(bootstrapRetryMax + time.Second)
		for _, name := range []string{client.DNS, client.Storage} {
			if _, err := cs.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
		}
		if !strings.Contains(out.String(), "all objects that the cluster needs are written") {
			t.Errorf("the end is not logged:\n%s", out)
		}
	})
}

// TestBootstrapPatience: requests without an answer hold up the start for some time, and slow ones for as long as they
// get on.
func TestBootstrapPatience(t *testing.T) {
	for name, tc := range map[string]struct {
		takes    time.Duration // a write
		from, to time.Duration // the start
	}{
		"without an answer": {24 * time.Hour, bootstrapPatience, bootstrapPatience},
		"slow disk":         {5 * time.Second, 20 * time.Second, 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				log := logrus.New()
				log.SetOutput(&bytes.Buffer{})
				write := change{verb: "create", object: "X", write: func(ctx context.Context) error {
					select {
					case <-time.After(tc.takes):
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				}}
				b := &bootstrap{log: log, hooks: new(lifecycle.Goroutines), compare: func(context.Context) ([]change, []error) {
					return slices.Repeat([]change{write}, 4*bootstrapWrites), nil
				}}
				began := time.Now()
				b.start(ctx)
				if took := time.Since(began); took < tc.from || took > tc.to {
					t.Errorf("the start took %s, want %s to %s", took, tc.from, tc.to)
				}
			})
		})
	}
}

// TestPatientHook: an upstream hook that fails is no reason to end, and is tried again.
func TestPatientHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, out := logrus.New(), &bytes.Buffer{}
		log.SetOutput(out)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		calls := 0
		hook := patient(func(genericapiserver.PostStartHookContext) error {
			if calls++; calls < 3 {
				return errors.New("unable to initialize: webhook")
			}
			return nil
		}, log, new(lifecycle.Goroutines))
		began := time.Now()
		if err := hook(genericapiserver.PostStartHookContext{Context: ctx}); err != nil {
			t.Fatalf("%v: upstream ends the process", err)
		}
		if took := time.Since(began); took != bootstrapPatience {
			t.Errorf("waited for %s", took)
		}
		time.Sleep(5 * bootstrapRetryMax)
		if calls != 3 || !strings.Contains(out.String(), "unable to initialize: webhook") {
			t.Errorf("%d calls; the log:\n%s", calls, out)
		}
	})
}

// TestBootstrapObjects: a ready apiserver has upstream's policy and what the composition needs; a later start creates
// what is missing, and nothing else.
func TestBootstrapObjects(t *testing.T) {
	ctx, cs := t.Context(), clientsFor(t, serve(t).Config(client.APIServer))
	missing := func(want int) {
		t.Helper()
		changes, failed := compare(ctx, cs, wantedObjects(&Options{}, true))
		if len(failed) > 0 || len(changes) != want {
			t.Fatalf("%d objects are missing, want %d: %v, %v", len(changes), want, changes, failed)
		}
	}
	missing(0)
	for what, get := range map[string]func() error{
		"the loopback's flow schema": func() error {
			_, err := cs.FlowcontrolV1().FlowSchemas().Get(ctx, "kubelith-loopback", metav1.GetOptions{})
			return err
		},
		"the kubelet client's binding": func() error {
			_, err := cs.RbacV1().ClusterRoleBindings().Get(ctx, "kubelith:apiserver-kubelet-client", metav1.GetOptions{})
			return err
		},
		"DNS's binding": func() error {
			_, err := cs.RbacV1().ClusterRoleBindings().Get(ctx, client.DNS, metav1.GetOptions{})
			return err
		},
		"DNS's binding in kube-system": func() error {
			_, err := cs.RbacV1().RoleBindings("kube-system").Get(ctx, client.DNS, metav1.GetOptions{})
			return err
		},
		"the binding of the manifests": func() error {
			_, err := cs.RbacV1().ClusterRoleBindings().Get(ctx, client.Manifests, metav1.GetOptions{})
			return err
		},
		"the critical priority": func() error {
			_, err := cs.SchedulingV1().PriorityClasses().Get(ctx, "system-node-critical", metav1.GetOptions{})
			return err
		},
		"a Role of kube-system, upstream": func() error {
			_, err := cs.RbacV1().Roles("kube-system").Get(ctx, "extension-apiserver-authentication-reader", metav1.GetOptions{})
			return err
		},
	} {
		err := get()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}

	role, binding := bootstrappolicy.ControllerRoles()[0].Name, bootstrappolicy.ControllerRoleBindings()[0].Name
	if err := cs.RbacV1().ClusterRoles().Delete(ctx, role, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := cs.RbacV1().ClusterRoleBindings().Delete(ctx, binding, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "see both deletions", func() error {
		if changes, _ := compare(ctx, cs, wantedObjects(&Options{}, true)); len(changes) != 2 {
			return fmt.Errorf("%d objects are missing", len(changes))
		}
		return nil
	})
	if failed := pass(t, cs); len(failed) > 0 {
		t.Fatal(failed)
	}
	eventually(t, "see both again", func() error {
		if changes, _ := compare(ctx, cs, wantedObjects(&Options{}, true)); len(changes) != 0 {
			return fmt.Errorf("%d objects are missing", len(changes))
		}
		return nil
	})
	// What may not be read or written is an error for each kind, which is tried again.
	if failed := pass(t, clientsFor(t, serve(t).Config(client.Scheduler))); len(failed) < 4 || !apierrors.IsForbidden(failed[0]) {
		t.Errorf("as a user without rights: %v", failed)
	}
}
