// Package approver approves or denies the certificate requests of nodes: the component "approver" of a server.
//
// It decides three kinds of CertificateSigningRequest and leaves all others to the operator. A machine that joins with
// a bootstrap token requests the client certificate of a node (client.go): it gets the name if no other machine has it.
// Names are reserved (reservations.go), because a Node object is created later than its certificate, and because a
// machine that joins again must be recognised, by its key. A node requests its next client certificate (renewal.go): it
// gets one as long as its Node exists and belongs to the machine that has the name. A node requests the serving
// certificate of its kubelet (serving.go): it gets its own names and addresses and no others.
//
// Upstream's csrsigning signs. Upstream's csrapproving would also approve the first two kinds, for any name and for
// ever; the bindings that allow it (nodeclient, selfnodeclient) are not created.
//
// The component also knows which nodes are servers, and labels Nodes (labels.go). It gives Nodes the external addresses
// that they claim (addresses.go).
package approver

import (
	"context"
	"crypto/x509"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	capihelper "k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/controller/certificates"

	"kubelith.io/kubelith/base/events"
	sharedinformers "kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/base/removed"
)

// Options of the component.
type Options struct {
	// Client acts as the component.
	Client *rest.Config
	// Informers returns the factory that the process shares; it is called when the apiserver is ready.
	Informers func() informers.SharedInformerFactory
	// Spend records that the machine with this key joins with the token, and returns the reason if it may not; an error
	// means: try again.
	Spend func(ctx context.Context, tokenID, machine string) (refusal string, err error)
	// ServerNames returns the names of server nodes, whose Nodes may not exist yet.
	ServerNames func() []string
	// ServerCert is the path of the API server's certificate: no node gets its names, nor those that other servers have
	// published (names.APINamesAnnotation).
	ServerCert string
	// Networks are the pod and Service networks, whose addresses no node has.
	Networks []string
	// ClusterDomain is the DNS domain of Services, whose names no node has.
	ClusterDomain string
	// CertificateLife is how long the certificates of nodes are valid.
	CertificateLife time.Duration
	// Log receives every decision.
	Log logrus.FieldLogger
}

// Server is the component.
type Server struct {
	opts   Options
	client kubernetes.Interface
	now    func() time.Time
	work   *lifecycle.Watchdog

	// Set at the start of one run, before anything reads them.
	requests   certificateslisters.CertificateSigningRequestLister
	nodes      corelisters.NodeLister
	configMaps corelisters.ConfigMapNamespaceLister
	removed    removedNodes
	events     record.EventRecorder
	refused    logging.Once // external addresses, by node

	mu   sync.Mutex
	gone map[string]*corev1.Node // deleted Nodes, by name
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
)

// removedNodes are those that were removed from the cluster (base/removed).
type removedNodes interface {
	Refuses(node string, issued time.Time) bool
	OlderThan(limit time.Time) []string
}

// New returns the component; nothing is touched before Run.
func New(o Options) (*Server, error) {
	cs, err := kubernetes.NewForConfig(o.Client)
	if err != nil {
		return nil, err
	}
	return newServer(o, cs), nil
}

func newServer(o Options, cs kubernetes.Interface) *Server {
	return &Server{opts: o, client: cs, now: time.Now, work: &lifecycle.Watchdog{}, gone: map[string]*corev1.Node{}}
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "approver" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return []string{"apiserver"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// workers is how many requests are decided at a time.
const workers = 2

// Healthy implements lifecycle.Health: no decision takes too long.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready when requests are answered.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	run := newServer(s.opts, s.client) // its own: an earlier run may have been abandoned
	run.work = s.work
	return run.run(ctx, ready)
}

func (s *Server) run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	view := sharedinformers.NewView(s.opts.Informers())
	defer view.Close()
	requests, nodes := view.Certificates().V1().CertificateSigningRequests(), view.Core().V1().Nodes()
	configMaps := view.Core().V1().ConfigMaps()
	s.requests, s.nodes, s.configMaps = requests.Lister(), nodes.Lister(), configMaps.Lister().ConfigMaps(namespace)

	recorder, stop := events.NewRecorder(ctx, s.client, events.Source(""))
	defer stop()
	s.events = recorder

	deleted, incorrect := reconcile.NewSignal(), reconcile.NewSignal()
	correct := func(obj any) {
		if len(s.outdated(obj)) > 0 || s.unaddressed(obj) {
			incorrect.Send()
		}
	}
	_, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    correct,
		UpdateFunc: func(_, obj any) { correct(obj) },
		DeleteFunc: func(obj any) {
			if s.recordDeleted(obj) {
				deleted.Send()
			}
		},
	})
	if err != nil {
		return err
	}
	gone, err := removed.Follow(view.Core().V1().Secrets().Informer(), nil)
	if err != nil {
		return err
	}
	defer gone.Stop()
	s.removed = gone
	controller := certificates.NewCertificateController(ctx, "kubelith-approver", s.client, requests, s.decide)
	view.Start(ctx.Done())
	if !cache.WaitFor(ctx, "",
		requests.Informer().HasSyncedChecker(), nodes.Informer().HasSyncedChecker(), configMaps.Informer().HasSyncedChecker(),
		gone.Synced(),
	) {
		return nil // stopped
	}
	ready()

	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	wg.Go(func() {
		defer utilruntime.HandleCrash()
		s.tidy(ctx, deleted, incorrect)
	})
	controller.Run(ctx, workers)
	return nil
}

// verdict is the result of the rules for a request. The zero value approves it.
type verdict struct {
	reason  string // one word, why it is denied
	message string // for the user: the reason and what to do
}

func deny(reason, format string, args ...any) verdict {
	return verdict{reason: reason, message: fmt.Sprintf(format, args...)}
}

// invalid is the reason for a request that no kubelet sends.
const invalid = "InvalidRequest"

// decide is called by upstream's controller for each request without a certificate, and again after an error.
func (s *Server) decide(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	defer s.work.Begin("deciding a certificate request")()
	if approved, denied := certificates.GetCertApprovalCondition(&csr.Status); approved || denied {
		return nil
	}
	var judge func(context.Context, *certificatesv1.CertificateSigningRequest, *x509.CertificateRequest) (verdict, error)
	switch {
	case csr.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName && s.joins(csr):
		judge = s.judgeClient
	case csr.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName && isNode(csr):
		judge = s.judgeRenewal
	case csr.Spec.SignerName == certificatesv1.KubeletServingSignerName && isNode(csr):
		judge = s.judgeServing
	default:
		return nil
	}
	request, err := capihelper.ParseCSR(csr.Spec.Request)
	if err != nil {
		return s.answer(ctx, csr, deny(invalid, "%v", err))
	}
	v, err := judge(ctx, csr, request)
	if err != nil {
		return err
	}
	return s.answer(ctx, csr, v)
}

// answer writes the verdict, for which the signer or the requester waits.
func (s *Server) answer(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, v verdict) error {
	condition := certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved", Message: "approved by kubelith's rules for nodes",
	}
	if v.reason != "" {
		condition.Type, condition.Reason, condition.Message = certificatesv1.CertificateDenied, v.reason, v.message
	}
	csr.Status.Conditions = append(csr.Status.Conditions, condition)
	if _, err := s.client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{}); apierrors.IsConflict(err) {
		return certificates.IgnorableError("update the approval of request %s: %v", csr.Name, err)
	} else if err != nil {
		return fmt.Errorf("update the approval of request %s: %w", csr.Name, err)
	}
	log := s.opts.Log.WithField("request", csr.Name).WithField("user", csr.Spec.Username)
	if v.reason != "" {
		log.Warnf("denied a certificate (%s): %s", v.reason, v.message)
	} else {
		log.Info("approved a certificate")
	}
	return nil
}

// usages returns the usages in the type that upstream's validation takes.
//
//lint:ignore SA1019 upstream asks for it
func usages(csr *certificatesv1.CertificateSigningRequest) sets.String {
	all := sets.NewString()
	for _, u := range csr.Spec.Usages {
		all.Insert(string(u))
	}
	return all
}
