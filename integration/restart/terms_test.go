package restart

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/integration/harness"
)

const (
	auditLog  = "/var/log/kubelith-audit.log"
	etcd      = harness.RunDir + "/etcd/etcd.sock"
	leaseTime = 10 * time.Second // that of the servers under KUBELITH_TEST_ETCD (components/node/undertest.go)
	ns        = metav1.NamespaceDefault
)

// twoServers starts two servers, each with its own API, on the etcd of the first.
func twoServers(t *testing.T) (a, b *harness.Server) {
	array := harness.BuildProgram(t, "../plugins/array")
	start := func(name, socket string, from *harness.Server) *harness.Server {
		s := harness.Start(t, harness.Options{
			NodeName: name,
			Env:      []string{"KUBELITH_TEST_ETCD=" + socket},
			Disable:  []string{"kubelet", "containerd", "proxy"},
			Args: []string{"--apiserver-arg=profiling=true", "--apiserver-arg=audit-log-path=" + auditLog,
				"--apiserver-arg=audit-policy-file=/etc/kubelith/audit.yaml"},
			NoWait: true, NoTestImage: true,
			Prepare: func(s *harness.Server) error {
				if from != nil { // one cluster has one set of keys
					if err := os.MkdirAll(s.Path(harness.DataDir+"/server"), 0o700); err != nil {
						return err
					}
					for _, dir := range []string{"tls", "cred"} {
						path := filepath.Join(harness.DataDir, "server", dir)
						if out, err := exec.Command("cp", "-rpT", from.Path(path), s.Path(path)).CombinedOutput(); err != nil {
							return fmt.Errorf("%w: %s", err, out)
						}
					}
				}
				policy := "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- {level: None, verbs: [get, list, watch]}\n- {level: Metadata}\n"
				program, err := os.ReadFile(array)
				return errors.Join(err, place(s, "/etc/kubelith/audit.yaml", []byte(policy)), place(s, harness.DataDir+"/plugins/storage/array", program))
			},
		})
		harness.Eventually(t, 90*time.Second, "the API of "+name+" to be ready", func() error {
			if _, err := os.Stat(s.Path(harness.AdminKubeconfig)); err != nil {
				return err
			}
			_, err := get(t, s, "/readyz")
			return err
		})
		return s
	}
	a = start("server-a", etcd, nil)
	return a, start("server-b", a.Path(etcd), a)
}

// place writes a file that only root may change or run.
func place(s *harness.Server, path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(s.Path(path)), 0o700); err != nil {
		return err
	}
	return os.WriteFile(s.Path(path), content, 0o700)
}

func get(t *testing.T, s *harness.Server, path string) (string, error) {
	uri, query, _ := strings.Cut(path, "?")
	r := s.Client(t).CoreV1().RESTClient().Get().AbsPath(uri)
	if key, value, ok := strings.Cut(query, "="); ok {
		r = r.Param(key, value)
	}
	text, err := r.DoRaw(t.Context())
	return string(text), err
}

// job is something that only the server that leads does.
type job struct {
	component string
	user      string // as which the component writes
	resource  string // what it writes
	// begin gives the component something to do in the term with that name, done returns nil when it is done.
	begin func(ctx context.Context, c *api, term string) error
	done  func(ctx context.Context, c *api, term string) error
}

// api is what jobs work on.
type api struct {
	kubernetes.Interface
	config *rest.Config
	leader *harness.Server // of the term that begins
}

func (c *api) apiService(ctx context.Context, verb string) error {
	r := c.Discovery().RESTClient().Verb(verb).AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io")
	_, err := r.DoRaw(ctx)
	return err
}

// jobs have a row for each component that is elected.
var jobs = []job{
	{"controller-manager", "system:serviceaccount:kube-system:deployment-controller", "replicasets", nil, func(ctx context.Context, c *api, term string) error {
		all, err := c.AppsV1().ReplicaSets(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=" + term})
		if err == nil && len(all.Items) == 0 {
			err = errors.New("the Deployment has no ReplicaSet")
		}
		return err
	}},
	{"scheduler", "system:kube-scheduler", "pods", func(ctx context.Context, c *api, term string) error {
		pod := harness.Pod(ns, term, "sleep", "1000")
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		_, err := c.CoreV1().Pods(ns).Create(ctx, pod, metav1.CreateOptions{})
		return err
	}, func(ctx context.Context, c *api, term string) error {
		pod, err := c.CoreV1().Pods(ns).Get(ctx, term, metav1.GetOptions{})
		if err == nil && pod.Spec.NodeName == "" {
			err = errors.New("the pod has no node")
		}
		return err
	}},
	{"approver", "system:kubelith:approver", "certificatesigningrequests", askForTheAPI, func(ctx context.Context, c *api, term string) error {
		csr, err := c.CertificatesV1().CertificateSigningRequests().Get(ctx, term, metav1.GetOptions{})
		if err == nil && len(csr.Status.Conditions) == 0 {
			err = errors.New("the request is not answered")
		}
		return err
	}},
	{"token", "system:kubelith:token", "configmaps", func(ctx context.Context, c *api, _ string) error {
		return c.CoreV1().ConfigMaps(metav1.NamespacePublic).Delete(ctx, "cluster-info", metav1.DeleteOptions{})
	}, func(ctx context.Context, c *api, _ string) error {
		_, err := c.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, "cluster-info", metav1.GetOptions{})
		return err
	}},
	{"dns-publisher", "system:kubelith:dns", "endpointslices", nil, func(ctx context.Context, c *api, term string) error { // of the term's Node
		_, err := c.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem).Get(ctx, "kube-dns-"+term+"-ipv4", metav1.GetOptions{})
		return err
	}},
	{"manifests", "system:kubelith:manifests", "configmaps", func(_ context.Context, c *api, term string) error {
		return place(c.leader, harness.DataDir+"/server/manifests/"+term+".yaml",
			[]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: default, name: "+term+"}\n"))
	}, func(ctx context.Context, c *api, term string) error {
		_, err := c.CoreV1().ConfigMaps(ns).Get(ctx, term, metav1.GetOptions{})
		return err
	}},
	{"servicelb", "system:kubelith:servicelb", "events", func(ctx context.Context, c *api, term string) error {
		_, err := c.CoreV1().Services(ns).Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: term, Annotations: map[string]string{"kubelith.io/servicelb-pool": "nobodys"}},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		return err
	}, func(ctx context.Context, c *api, term string) error {
		all, err := c.CoreV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Service,involvedObject.name=" + term})
		if err == nil && len(all.Items) == 0 {
			err = errors.New("no Event has the reason why the Service has no address")
		}
		return err
	}},
	{"storage-controllers", "system:kubelith:storage", "persistentvolumes", func(ctx context.Context, c *api, term string) error {
		class := "array"
		_, err := c.CoreV1().PersistentVolumeClaims(ns).Create(ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: term},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}}},
		}, metav1.CreateOptions{})
		return err
	}, func(ctx context.Context, c *api, term string) error {
		claim, err := c.CoreV1().PersistentVolumeClaims(ns).Get(ctx, term, metav1.GetOptions{})
		if err == nil && claim.Status.Phase != corev1.ClaimBound {
			err = fmt.Errorf("the claim is %s", claim.Status.Phase)
		}
		return err
	}},
	{"metrics-publisher", "system:kubelith:metrics", "apiservices", func(ctx context.Context, c *api, _ string) error {
		if err := c.apiService(ctx, "DELETE"); !apierrors.IsNotFound(err) { // as in the first term, which has just begun
			return err
		}
		return nil
	}, func(ctx context.Context, c *api, _ string) error { return c.apiService(ctx, "GET") }},
}

// askForTheAPI has a node ask for a certificate with a name of the API, which is refused.
func askForTheAPI(ctx context.Context, c *api, term string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + term, Organization: []string{"system:nodes"}}, DNSNames: []string{"kubernetes.default.svc"}}, key)
	if err != nil {
		return err
	}
	config := rest.CopyConfig(c.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + term, Groups: []string{"system:nodes", "system:authenticated"}}
	node, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	_, err = node.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: term},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}),
			SignerName: certificatesv1.KubeletServingSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		},
	}, metav1.CreateOptions{})
	return err
}

// term is a time for which a server led: others may not write in its name then.
type term struct {
	name   string
	server *harness.Server
	begin  time.Time
	end    time.Time // when its writes are refused at the latest
}

// TestTerms: of two servers on one etcd, only the leading one runs the cluster's components, whatever a term before
// did. The process goes on when its term is over, and has nothing left of it when the next one begins.
func TestTerms(t *testing.T) {
	a, b := twoServers(t)
	c := &api{Interface: a.Client(t), config: a.RESTConfig(t)}
	begin := func(name string, leader *harness.Server) {
		t.Helper()
		c.leader = leader
		addNode(t, c, name)
		a.Deploy(t, harness.Pod(ns, name, "sleep", "1000"), 1)
		for _, j := range jobs {
			if j.begin == nil {
				continue
			}
			// A server that has just begun to lead may not have come to it.
			harness.Eventually(t, 30*time.Second, j.component+" to have something to do", func() error {
				return j.begin(t.Context(), c, name)
			})
		}
	}
	done := func(name string) {
		t.Helper()
		for _, j := range jobs {
			harness.Eventually(t, 60*time.Second, j.component+" to act", func() error { return j.done(t.Context(), c, name) })
		}
	}
	terms := []*term{{name: "term-1", server: a}}
	begin("term-1", a)
	done("term-1")
	left := map[*harness.Server]remains{}
	for i, next := range []*harness.Server{b, a, b, nil} {
		last := terms[len(terms)-1]
		last.end = hold(t, c, "nobody", 600).Add(leaseTime)
		harness.Eventually(t, 30*time.Second, "the term to be over", func() error {
			if time.Now().Before(last.end) {
				return errors.New("its server may still write")
			}
			return nil
		})
		name := fmt.Sprintf("term-%d", i+2)
		if next != nil {
			begin(name, next) // while no server leads
		}
		if before, ok := left[last.server]; ok {
			harness.Eventually(t, 20*time.Second, "a term to leave what the one before did", func() error { return remainsOf(t, last.server).more(before) })
		} else {
			left[last.server] = remainsOf(t, last.server)
		}
		if next == nil {
			break
		}
		terms = append(terms, &term{name: name, server: next, begin: time.Now()})
		hold(t, c, next.NodeName(), int32(leaseTime/time.Second))
		done(name)
	}
	for _, s := range []*harness.Server{a, b} {
		select {
		case <-s.Exited():
			t.Fatal("a process ended with its term")
		default:
		}
		if strings.Contains(s.Logs(), "duplicate metrics collector") { // see base/logging/ranks.go for what may
			t.Error("a metric was registered again")
		}
		compare(t, s, terms)
	}
}

// addNode adds a Node of a machine that is none.
func addNode(t *testing.T, c *api, name string) {
	t.Helper()
	number := strings.TrimPrefix(name, "term-")
	_, err := c.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubelith.io/role": "agent"}}}, metav1.CreateOptions{})
	if err == nil {
		status := `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.` + number + `"}],"allocatable":{"cpu":"4","memory":"4Gi","pods":"10"}}}`
		_, err = c.CoreV1().Nodes().PatchStatus(t.Context(), name, []byte(status))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// hold gives the Lease to a server, or to one that there is not, and returns when.
func hold(t *testing.T, c *api, server string, seconds int32) time.Time {
	t.Helper()
	leases := c.CoordinationV1().Leases(metav1.NamespaceSystem)
	harness.Eventually(t, 20*time.Second, server+" to hold the Lease", func() error {
		lease, err := leases.Get(t.Context(), "kubelith", metav1.GetOptions{})
		if err != nil {
			return err
		}
		now := metav1.NowMicro()
		lease.Spec.HolderIdentity, lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = &server, &now, &seconds
		_, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{})
		return err
	})
	return time.Now()
}

// compare compares what the components wrote through a server with its terms.
func compare(t *testing.T, s *harness.Server, terms []*term) {
	t.Helper()
	wrote := map[string]bool{} // by term and component
	for _, e := range audited(t, s) {
		if !elected(e.User.Username) {
			continue
		}
		i := slices.IndexFunc(terms, func(term *term) bool {
			return term.server == s && e.RequestReceivedTimestamp.After(term.begin) && e.RequestReceivedTimestamp.Before(term.end)
		})
		if i < 0 {
			t.Errorf("%s wrote through %s, which did not lead at %s: %s %s %s", e.User.Username, s.NodeName(), e.RequestReceivedTimestamp, e.Verb, e.ObjectRef.Resource, e.ObjectRef.Name)
			continue
		}
		wrote[terms[i].name+e.User.Username+e.ObjectRef.Resource] = true
	}
	for _, term := range terms {
		for _, j := range jobs {
			if term.server == s && !wrote[term.name+j.user+j.resource] {
				t.Errorf("%s did not act in %s", j.component, term.name)
			}
		}
	}
}

// elected reports whether a user is a component of which the cluster has one.
func elected(user string) bool {
	return strings.HasPrefix(user, "system:serviceaccount:kube-system:") || user == "system:kube-controller-manager" ||
		slices.ContainsFunc(jobs, func(j job) bool { return j.user == user })
}

// event is a line of the audit log.
type event struct {
	User                     struct{ Username string }
	Verb                     string
	ObjectRef                struct{ Resource, Name string }
	RequestReceivedTimestamp time.Time
}

func audited(t *testing.T, s *harness.Server) (events []event) {
	t.Helper()
	content, err := os.ReadFile(s.Path(auditLog))
	if err != nil {
		t.Fatal(err)
	}
	for decoder := json.NewDecoder(bytes.NewReader(content)); decoder.More(); {
		var e event
		if err := decoder.Decode(&e); err != nil {
			break // it may be being written
		}
		events = append(events, e)
	}
	return events
}

// remains are what a server has while it does not lead: goroutines of elected components by label and stack (an event
// handler has two), and the metrics of their queues.
type remains map[string]int

func remainsOf(t *testing.T, s *harness.Server) remains {
	t.Helper()
	all := remains{}
	stacks, err := get(t, s, "/debug/pprof/goroutine?debug=1")
	if err != nil {
		t.Fatal(err)
	}
	for block := range strings.SplitSeq(stacks, "\n\n") {
		var n int
		head, stack, _ := strings.Cut(block, "\n")
		if _, err := fmt.Sscanf(head, "%d @", &n); err != nil {
			continue
		}
		if slices.ContainsFunc(jobs, func(j job) bool { return strings.Contains(stack, `:"`+j.component+`"`) }) {
			all[stack] += n
		}
	}
	for name := range metrics(t, s) {
		if strings.HasPrefix(name, "workqueue_") {
			all[name]++
		}
	}
	return all
}

// more returns an error that names what is more than before.
func (r remains) more(before remains) error {
	var left []string
	for what, n := range r {
		if n > before[what] {
			left = append(left, fmt.Sprintf("%d instead of %d: %s", n, before[what], what))
		}
	}
	if len(left) == 0 {
		return nil
	}
	return errors.New(strings.Join(left, "\n\n"))
}
