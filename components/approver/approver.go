// Package approver decides about the certificates that nodes ask for: the component "approver" of a server.
//
// It answers three kinds of CertificateSigningRequest and leaves all others to people. A machine that joins with a
// bootstrap token asks for the client certificate of a node (client.go): it gets the name when no other machine has it.
// Names are reserved (reservations.go), because a Node object comes later than its certificate, and because a machine
// that joins again has to be recognised: by its key. A node asks for its next client certificate (renewal.go): it gets one
// for as long as its Node exists and is of the machine that has the name. A node asks for the certificate with which its
// kubelet serves (serving.go): it gets what is its own and nobody else's.
//
// Upstream's csrsigning signs. Upstream's csrapproving would approve the first two kinds as well, for any name and for
// ever; the bindings that allow it (nodeclient, selfnodeclient) are not made.
//
// The component also knows which nodes are servers, and labels their Nodes (roles.go).
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
	capihelper "k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/controller/certificates"

	sharedinformers "kubelith.io/kubelith/components/informers"
	"kubelith.io/kubelith/components/lifecycle"
	"kubelith.io/kubelith/components/removed"
)

// Options of the component.
type Options struct {
	// Client acts as the component.
	Client *rest.Config
	// Informers returns the factory that the process shares; it is called when the apiserver is ready.
	Informers func() informers.SharedInformerFactory
	// Group is that of machines which join with a token of ours.
	Group string
	// Spend notes that the machine with this key joins with the token, and says why it may not; an error means: ask
	// again.
	Spend func(ctx context.Context, tokenID, machine string) (refusal string, err error)
	// ServerNames are the names of nodes that are servers, whose Nodes may not exist yet.
	ServerNames []string
	// ServerCert is the path of the API server's certificate: its names are nobody else's.
	ServerCert string
	// Networks are those of pods and Services, whose addresses no node has.
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

	// Of one run, which sets them before anything reads them.
	requests   certificateslisters.CertificateSigningRequestLister
	nodes      corelisters.NodeLister
	configMaps corelisters.ConfigMapNamespaceLister
	removed    removedNodes

	mu   sync.Mutex
	gone map[string]*corev1.Node // Nodes that were deleted, by name
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
)

// removedNodes are those that were removed from the cluster (components/removed).
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

// workers is how many requests are decided at a time.
const workers = 2

// Healthy implements lifecycle.Health: no decision takes too long.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready when requests are answered.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	run := newServer(s.opts, s.client) // of its own: an earlier run may have been abandoned
	run.work = s.work
	return run.run(ctx, ready)
}

func (s *Server) run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	view := sharedinformers.NewView(s.opts.Informers(), nil)
	defer view.Close()
	requests, nodes := view.Certificates().V1().CertificateSigningRequests(), view.Core().V1().Nodes()
	configMaps := view.Core().V1().ConfigMaps()
	s.requests, s.nodes, s.configMaps = requests.Lister(), nodes.Lister(), configMaps.Lister().ConfigMaps(namespace)

	deleted, unlabelled := make(chan struct{}, 1), make(chan struct{}, 1)
	tell := func(c chan<- struct{}) {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	label := func(obj any) {
		if s.lacksRole(obj) {
			tell(unlabelled)
		}
	}
	_, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    label,
		UpdateFunc: func(_, obj any) { label(obj) },
		DeleteFunc: func(obj any) {
			if s.noteGone(obj) {
				tell(deleted)
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
	if !cache.WaitForCacheSync(ctx.Done(), requests.Informer().HasSynced, nodes.Informer().HasSynced, configMaps.Informer().HasSynced, gone.Synced) {
		return nil // asked to stop
	}
	ready()

	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	wg.Go(func() {
		defer utilruntime.HandleCrash()
		s.tidy(ctx, deleted, unlabelled)
	})
	controller.Run(ctx, workers)
	return nil
}

// verdict is what the rules say of a request. The zero value approves it.
type verdict struct {
	reason  string // one word, why it is denied
	message string // for people: what is wrong and what to do
}

func deny(reason, format string, args ...any) verdict {
	return verdict{reason: reason, message: fmt.Sprintf(format, args...)}
}

// invalid is the reason for a request that no kubelet makes.
const invalid = "InvalidRequest"

// decide is called by upstream's controller for each request without a certificate, again after an error.
func (s *Server) decide(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	defer s.work.Begin("a decision")()
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

// answer writes the verdict; with it the signer, or the one who asked, goes on.
func (s *Server) answer(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, v verdict) error {
	condition := certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved", Message: "approved by kubelith's rules for nodes",
	}
	if v.reason != "" {
		condition.Type, condition.Reason, condition.Message = certificatesv1.CertificateDenied, v.reason, v.message
	}
	csr.Status.Conditions = append(csr.Status.Conditions, condition)
	if _, err := s.client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{}); apierrors.IsConflict(err) {
		return certificates.IgnorableError("answer the request %s: %v", csr.Name, err)
	} else if err != nil {
		return fmt.Errorf("answer the request %s: %w", csr.Name, err)
	}
	log := s.opts.Log.WithField("request", csr.Name).WithField("user", csr.Spec.Username)
	if v.reason != "" {
		log.Warnf("refused a certificate (%s): %s", v.reason, v.message)
	} else {
		log.Info("approved a certificate")
	}
	return nil
}

// usages as upstream's validation takes them.
//
//lint:ignore SA1019 upstream asks for it
func usages(csr *certificatesv1.CertificateSigningRequest) sets.String {
	all := sets.NewString()
	for _, u := range csr.Spec.Usages {
		all.Insert(string(u))
	}
	return all
}
