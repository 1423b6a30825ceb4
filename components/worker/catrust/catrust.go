// Package catrust is the component "ca-trust" of an agent: it follows a rotation of the cluster's CAs
// (components/controlplane/carotation). It stores which CAs to trust, has the node's certificates signed by the new
// ones, and reports at its Node how far it is. What it trusts comes from an API server that it trusts already.
package catrust

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"

	"kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodepatch"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/base/rotation"
)

const (
	// retry is the time after a step that has not reached the phase.
	retry = time.Second
	// stepTimeout bounds one step, in which two certificates are signed at most.
	stepTimeout = 90 * time.Second
)

// Signed is a certificate that is requested from the API.
type Signed interface {
	// Certificate returns the newest; nil: there is none yet.
	Certificate() *x509.Certificate
	// Renew requests another one, and waits until it is in use.
	Renew(ctx context.Context) error
}

// Trusting is a connection to the API.
type Trusting interface {
	Signed
	// Trust sets the CAs of the API, in PEM, for new connections and later starts.
	Trust(cas []byte) error
}

// Options configures the component.
type Options struct {
	NodeName string
	// Connection is the node's to the API, and Kubelet its serving certificate.
	Connection Trusting
	Kubelet    Signed
	// Client acts as the node.
	Client *rest.Config
	Log    logrus.FieldLogger
}

// Agent is the component.
type Agent struct {
	opts   Options
	client kubernetes.Interface
	work   lifecycle.Watchdog
	said   logging.Once // of Run
	told   string       // the annotation as it was last written; of Run
}

var (
	_ lifecycle.Component = (*Agent)(nil)
	_ lifecycle.Health    = (*Agent)(nil)
)

// New returns the component; nothing is touched before Run.
func New(o Options) (*Agent, error) {
	cs, err := kubernetes.NewForConfig(o.Client)
	if err != nil {
		return nil, err
	}
	return &Agent{opts: o, client: cs}, nil
}

// Name implements lifecycle.Component.
func (a *Agent) Name() string { return "ca-trust" }

// Needs implements lifecycle.Component.
func (a *Agent) Needs() []string { return []string{"apiserver"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Agent) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// Healthy implements lifecycle.Health: it fails when a step takes too long.
func (a *Agent) Healthy(ctx context.Context) error { return a.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready at once.
func (a *Agent) Run(ctx context.Context, ready func()) error {
	a.work.Reset()
	wake := reconcile.NewSignal()
	factory := informers.One(a.client, metav1.NamespaceSystem, names.CARotation)
	states := factory.Core().V1().ConfigMaps()
	_, _ = states.Informer().AddEventHandler(informers.OnEvent(wake.Send)) // fails only on a stopped informer
	defer informers.Start(ctx, factory)()
	ready()
	reconcile.Loop(ctx, wake, 0, func() time.Duration {
		object, err := states.Lister().ConfigMaps(metav1.NamespaceSystem).Get(names.CARotation)
		if err != nil { // there is no rotation, or it is not known yet
			return 0
		}
		return a.look(ctx, wanted(object))
	})
	return nil
}

// wanted returns the phase of the rotation that is under way; the zero Rotation: none is.
func wanted(object *corev1.ConfigMap) pki.Rotation {
	var r pki.Rotation
	if json.Unmarshal([]byte(object.Data[rotation.StateKey]), &r) != nil || !r.Phase.Reached(pki.Trust) {
		return pki.Rotation{}
	}
	return r
}

// look takes the steps to the phase, and logs why that is not possible.
func (a *Agent) look(ctx context.Context, to pki.Rotation) (again time.Duration) {
	if to.ID == "" || a.told == to.Report() {
		return 0
	}
	defer a.work.Begin("a step of the rotation of the CAs")()
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	at, err := a.step(ctx, to.ID)
	problem := ""
	if err != nil {
		problem = "cannot follow the rotation of the CAs: " + err.Error()
	}
	if a.said.News("", problem) {
		a.opts.Log.Warn(problem)
	}
	if err != nil || !at.Reached(to.Phase) {
		return retry
	}
	return 0
}

// step does what the server that answers requires, and reports it. It returns the phase of that server.
func (a *Agent) step(ctx context.Context, id string) (pki.Phase, error) {
	text, err := a.client.CoreV1().RESTClient().Get().AbsPath(names.CATrustPath).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return "", err
	}
	var server pki.Trusted
	if err := json.Unmarshal(text, &server); err != nil {
		return "", fmt.Errorf("the server's answer cannot be read: %w", err)
	}
	if server.Rotation == nil || server.Rotation.ID != id {
		return "", nil // it has not begun
	}
	if err := a.opts.Connection.Trust(server.Cluster); err != nil {
		return "", err
	}
	phase := server.Rotation.Phase
	if phase.Reached(pki.Sign) {
		if err := a.renew(ctx, "the node's certificate", a.opts.Connection, server.Signing); err != nil {
			return "", err
		}
		if err := a.renew(ctx, "the kubelet's serving certificate", a.opts.Kubelet, server.KubeletSigning); err != nil {
			return "", err
		}
	}
	report := server.Rotation.Report()
	if report == a.told {
		return phase, nil
	}
	if err := nodepatch.Annotate(ctx, a.client, a.opts.NodeName, names.CAAnnotation, report); err != nil {
		return "", err
	}
	a.told = report
	a.opts.Log.Infof("rotation %s of the CAs: this agent is in phase %s", id, phase)
	return phase, nil
}

// renew renews a certificate unless the CA has signed it.
func (a *Agent) renew(ctx context.Context, what string, s Signed, ca []byte) error {
	cas, err := certutil.ParseCertsPEM(ca)
	if err != nil {
		return fmt.Errorf("the server's CA cannot be read: %w", err)
	}
	signed := func() bool {
		leaf := s.Certificate()
		return leaf != nil && leaf.CheckSignatureFrom(cas[0]) == nil
	}
	if signed() {
		return nil
	}
	if err := s.Renew(ctx); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if !signed() {
		return errors.New(what + " was signed by the former CA again")
	}
	a.opts.Log.Infof("%s is signed by the new CA", what)
	return nil
}
