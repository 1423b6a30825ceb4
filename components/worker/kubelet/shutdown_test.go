package kubelet

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/nodeshutdown/systemd"
)

// fakeLogind counts the locks that are held.
type fakeLogind struct {
	shutdowns chan bool
	mu        sync.Mutex
	taken     int
	held      map[systemd.InhibitLock]bool
}

func (l *fakeLogind) InhibitShutdown() (systemd.InhibitLock, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken++
	l.held[systemd.InhibitLock(l.taken)] = true
	return systemd.InhibitLock(l.taken), nil
}

func (l *fakeLogind) ReleaseInhibitLock(lock systemd.InhibitLock) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.held[lock] {
		return errors.New("not held")
	}
	delete(l.held, lock)
	return nil
}

func (l *fakeLogind) MonitorShutdown(klog.Logger) (<-chan bool, error) { return l.shutdowns, nil }

func (l *fakeLogind) Close() error { return nil }

// locks returns how many are held now and how many were taken.
func (l *fakeLogind) locks() (held, taken int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.held), l.taken
}

// shutdownTest is a node "one" whose pods are checked when logind signals a shutdown.
type shutdownTest struct {
	*testing.T
	cs     *fake.Clientset
	logind *fakeLogind
	listed chan struct{} // an item per check of the node's pods
	refuse chan error    // the errors that the next checks get
	end    context.CancelFunc
	ended  chan error
}

func newShutdownTest(t *testing.T, pods ...runtime.Object) *shutdownTest {
	st := &shutdownTest{T: t, cs: fake.NewClientset(pods...), logind: &fakeLogind{shutdowns: make(chan bool), held: map[systemd.InhibitLock]bool{}},
		listed: make(chan struct{}), refuse: make(chan error, 1), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	st.end = cancel
	t.Cleanup(cancel)
	st.cs.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		select {
		case err := <-st.refuse:
			return true, nil, err
		case st.listed <- struct{}{}:
		case <-ctx.Done():
		}
		object, err := st.cs.Tracker().List(corev1.SchemeGroupVersion.WithResource("pods"), corev1.SchemeGroupVersion.WithKind("Pod"), "")
		if err != nil {
			return true, nil, err
		}
		all, of := object.(*corev1.PodList), &corev1.PodList{}
		for _, pod := range all.Items {
			if a.(clienttesting.ListAction).GetListRestrictions().Fields.Matches(fields.Set{"spec.nodeName": pod.Spec.NodeName}) {
				of.Items = append(of.Items, pod)
			}
		}
		return true, of, nil
	})
	log := logrus.New()
	log.SetOutput(io.Discard)
	s := &Server{opts: Options{NodeName: "one", Log: log}}
	go func() { st.ended <- s.holdShutdown(ctx, st.cs, st.logind) }()
	st.await(1, 1)
	return st
}

// await waits until as many locks are held, of as many that were ever taken.
func (st *shutdownTest) await(held, taken int) {
	st.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		h, n := st.logind.locks()
		if h == held && n == taken {
			return
		}
		if time.Now().After(deadline) {
			st.Fatalf("%d of %d locks held, want %d of %d", h, n, held, taken)
		}
	}
}

// stillHeld checks the lock after the pods were checked twice: the result of the first check has taken effect.
func (st *shutdownTest) stillHeld() {
	st.Helper()
	for range 2 {
		select {
		case <-st.listed:
		case <-time.After(20 * time.Second):
			st.Fatal("the pods are not checked")
		}
	}
	if held, _ := st.logind.locks(); held != 1 {
		st.Fatal("the lock was released while a pod has no last status")
	}
}

// drain lets the pods be checked without end.
func (st *shutdownTest) drain() {
	go func() {
		for {
			select {
			case <-st.listed:
			case <-st.Context().Done():
				return
			}
		}
	}()
}

func (st *shutdownTest) setPhase(name string, phase corev1.PodPhase) {
	st.Helper()
	if _, err := st.cs.CoreV1().Pods("default").UpdateStatus(st.Context(), pod(name, "one", phase), metav1.UpdateOptions{}); err != nil {
		st.Fatal(err)
	}
}

func pod(name, node string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase}}
}

// The machine waits until the API has the last status of each pod that it ran: not for those that ended before, run
// elsewhere, or came to replace one.
func TestShutdownAwaitsStatuses(t *testing.T) {
	st := newShutdownTest(t, pod("deaf", "one", corev1.PodRunning), pod("deleted", "one", corev1.PodRunning), pod("done", "one", corev1.PodSucceeded), pod("elsewhere", "two", corev1.PodRunning))
	st.logind.shutdowns <- true
	st.stillHeld()
	if err := st.cs.Tracker().Add(pod("replacement", "one", corev1.PodPending)); err != nil {
		t.Fatal(err)
	}
	if err := st.cs.CoreV1().Pods("default").Delete(t.Context(), "deleted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	st.stillHeld()
	st.setPhase("deaf", corev1.PodFailed)
	st.drain()
	st.await(0, 1)
}

// A shutdown that was cancelled, before or after the lock was released, leaves one lock for the next.
func TestShutdownCancelled(t *testing.T) {
	st := newShutdownTest(t, pod("deaf", "one", corev1.PodRunning))
	st.logind.shutdowns <- true
	st.stillHeld()
	st.logind.shutdowns <- false
	st.logind.shutdowns <- true
	st.stillHeld()
	st.setPhase("deaf", corev1.PodFailed)
	st.drain()
	st.await(0, 1)
	st.logind.shutdowns <- false
	st.await(1, 2)
	st.logind.shutdowns <- true
	st.await(0, 2)
}

// An API that does not answer gets no statuses: the machine does not wait.
func TestShutdownWithoutAPI(t *testing.T) {
	st := newShutdownTest(t, pod("deaf", "one", corev1.PodRunning))
	st.refuse <- errors.New("connection refused")
	st.logind.shutdowns <- true
	st.await(0, 1)
}

// The lock ends with the component, and with the connection, which is made again.
func TestShutdownLockEnds(t *testing.T) {
	st := newShutdownTest(t)
	st.end()
	if err := <-st.ended; err != nil {
		t.Error(err)
	}
	st.await(0, 1)

	st = newShutdownTest(t)
	close(st.logind.shutdowns)
	if err := <-st.ended; err == nil {
		t.Error("the end of the connection is no error")
	}
	st.await(0, 1)
}
