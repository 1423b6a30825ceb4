package nodes

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/integration/harness"
)

// testCompromised: an attacker has an agent's credentials, and tries to reach beyond its node: other nodes' volumes,
// the traffic of load balancers. Before that, a Service leaves the ports of hosts alone.
func testCompromised(t *testing.T, c *harness.Cluster) {
	ns, agent := c.Namespace(t), c.Agents[0]
	t.Run("ports of the host", func(t *testing.T) { testHostPorts(t, c, ns) })
	t.Run("volumes", func(t *testing.T) { testVolumesOfOthers(t, c, ns) })
	t.Run("labels and addresses", func(t *testing.T) { testFalseNode(t, c, ns) })
	agent.Launch(t)
	agent.WaitReady(t) // its Node is true again
}

// stolen returns a client with the agent's certificate, as the node or as a user that it impersonates.
func stolen(t *testing.T, agent *harness.Server, as rest.ImpersonationConfig) kubernetes.Interface {
	t.Helper()
	pki := harness.DataDir + "/agent/pki/"
	// A link to an absolute path, in the agent's sandbox.
	current, err := os.Readlink(agent.Path(pki + "client-current.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pair := agent.Path(pki + filepath.Base(current))
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: agent.URL(), Impersonate: as,
		TLSClientConfig: rest.TLSClientConfig{CertFile: pair, KeyFile: pair, CAFile: agent.Path(pki + "cluster-ca.crt")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// mustRefuse tries attacks.
func mustRefuse(t *testing.T, attacks map[string]func() error) {
	t.Helper()
	for what, attack := range attacks {
		if err := attack(); !apierrors.IsForbidden(err) {
			t.Errorf("the agent %s: %v", what, err)
		}
	}
}

// addressesOf waits until a Service has these addresses and no others.
func addressesOf(t *testing.T, c *harness.Cluster, ns, name string, want ...string) {
	t.Helper()
	slices.Sort(want)
	harness.Eventually(t, 60*time.Second, fmt.Sprintf("the Service %s to have %v", name, want), func() error {
		svc, err := c.Server.Client(t).CoreV1().Services(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var got []string
		for _, in := range svc.Status.LoadBalancer.Ingress {
			got = append(got, in.IP)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("it has %v", got)
		}
		return nil
	})
}

// testHostPorts: a program listens on the agent, in the host's network. A Service with its port leaves the agent out,
// with an Event.
func testHostPorts(t *testing.T, c *harness.Cluster, ns string) {
	agent := c.Agents[0]
	program := on(agent, harness.Pod(ns, "program", "/bin/probe", "serve")) // on port 8080
	program.Spec.HostNetwork = true
	c.Server.Run(t, program)
	harness.Eventually(t, 30*time.Second, "the agent to publish its ports", func() error {
		if told := agent.Node(t).Annotations["kubelith.io/host-ports"]; !slices.Contains(strings.Split(told, ","), "8080/TCP") {
			return fmt.Errorf("they are %q", told)
		}
		return nil
	})
	service(t, c, ns, "host-ports", func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Spec.Ports = svc.Spec.Ports[:1]
		svc.Spec.Ports[0].Port = 8080
	})
	addressesOf(t, c, ns, "host-ports", c.Server.NodeIP)
	awaitEvent(t, c, ns, "HostPort", "port 8080/TCP is in use by a host process on "+agent.NodeName())
	if a, err := dialer(outside).ask(agent.NodeIP, 8080); err != nil || a.Hostname == "" {
		t.Errorf("the program of the host does not answer any more: %+v, %v", a, err)
	}
}

func awaitEvent(t *testing.T, c *harness.Cluster, ns, reason, text string) {
	t.Helper()
	harness.Eventually(t, 30*time.Second, "an Event "+reason, func() error {
		events, err := c.Server.Client(t).CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=" + reason})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if strings.Contains(e.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("there are %d", len(events.Items))
	})
}

func testVolumesOfOthers(t *testing.T, c *harness.Cluster, ns string) {
	agent, admin, ctx := c.Agents[0], c.Server.Client(t), t.Context()
	volume := func(name, node string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: "local",
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "local.kubelith.io", VolumeHandle: name}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "topology.local.kubelith.io/node", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		}}
	}
	theirs := volume("theirs-"+ns, c.Server.NodeName())
	if _, err := admin.CoreV1().PersistentVolumes().Create(ctx, theirs, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Server.Kubectl(t, "delete", "persistentvolume", theirs.Name, "--wait=false")
	})
	claim, err := admin.CoreV1().PersistentVolumeClaims(ns).Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "pending"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const identity, group = "system:kubelith:storage-node:", "system:kubelith:storage-nodes"
	storage := stolen(t, agent, rest.ImpersonationConfig{UserName: identity + agent.NodeName(), Groups: []string{group}})
	if _, err := storage.CoreV1().PersistentVolumes().Get(ctx, theirs.Name, metav1.GetOptions{}); err != nil {
		t.Fatalf("the storage controllers of the node cannot work: %v", err)
	}
	root := volume("root-"+ns, agent.NodeName())
	root.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
	root.Spec.ClaimRef = &corev1.ObjectReference{Namespace: ns, Name: claim.Name, UID: claim.UID}
	secret := volume("secret-"+ns, agent.NodeName())
	secret.Spec.ClaimRef = root.Spec.ClaimRef
	secret.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "kube-system", Name: "any"}
	patchVolume := func(patch string) func() error {
		return func() error {
			_, err := storage.CoreV1().PersistentVolumes().Patch(ctx, theirs.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		}
	}
	create := func(v *corev1.PersistentVolume) func() error {
		return func() error {
			_, err := storage.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{})
			return err
		}
	}
	attacks := map[string]func() error{
		"has another's volume deleted with its claim": patchVolume(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`),
		"writes to another's volume":                  patchVolume(`{"metadata":{"labels":{"a":"b"}}}`),
		"deletes another's volume": func() error {
			return storage.CoreV1().PersistentVolumes().Delete(ctx, theirs.Name, metav1.DeleteOptions{})
		},
		"gives a claim / of any node":      create(root),
		"gives a claim a Secret of others": create(secret),
		"takes a claim": func() error {
			_, err := storage.CoreV1().PersistentVolumeClaims(ns).Patch(ctx, claim.Name, types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"`+agent.NodeName()+`"}}}`), metav1.PatchOptions{})
			return err
		},
		"makes a default StorageClass": func() error {
			_, err := storage.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: ns,
				Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}}, Provisioner: "local.kubelith.io"}, metav1.CreateOptions{})
			return err
		},
		"stops all mounts": func() error {
			_, err := storage.StorageV1().CSIDrivers().Patch(ctx, "local.kubelith.io", types.MergePatchType, []byte(`{"spec":{"attachRequired":true}}`), metav1.PatchOptions{})
			return err
		},
		"reads pods": func() error { _, err := storage.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); return err },
	}
	for as, config := range map[string]rest.ImpersonationConfig{
		"as the server's storage controllers": {UserName: "system:kubelith:storage"},
		"as those of another node":            {UserName: identity + c.Server.NodeName(), Groups: []string{group}},
		"as itself in their group":            {UserName: "system:node:" + agent.NodeName(), Groups: []string{group}},
		"as itself":                           {},
	} {
		other := stolen(t, agent, config)
		attacks["lists volumes "+as] = func() error {
			_, err := other.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
			return err
		}
	}
	mustRefuse(t, attacks)
}

// testFalseNode: the agent writes false data to its Node, and no Service gets more addresses for it. The agent itself
// is stopped, so that its kubelet does not correct it.
func testFalseNode(t *testing.T, c *harness.Cluster, ns string) {
	agent, ctx := c.Agents[0], t.Context()
	service(t, c, ns, "wanted", func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Spec.Ports = svc.Spec.Ports[:1]
	})
	addressesOf(t, c, ns, "wanted", c.Server.NodeIP, agent.NodeIP)
	agent.Kill9(t)
	node := stolen(t, agent, rest.ImpersonationConfig{})
	patch := func(subresource, text string) func() error {
		return func() error {
			_, err := node.CoreV1().Nodes().Patch(ctx, agent.NodeName(), types.MergePatchType, []byte(text), metav1.PatchOptions{}, strings.Fields(subresource)...)
			return err
		}
	}
	addresses := func(more ...corev1.NodeAddress) string {
		all := append(agent.Node(t).Status.Addresses, more...)
		text, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": all}})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	at := func(ip string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip}
	}
	// Two keys of WireGuard: the server's Node has one.
	key, free := strings.Repeat("A", 42)+"I=", strings.Repeat("A", 42)+"E="
	wireGuard := func(key string) string {
		return `{"metadata":{"annotations":{"kubelith.io/wireguard-key":"` + key + `"}}}`
	}
	if _, err := c.Server.Client(t).CoreV1().Nodes().Patch(ctx, c.Server.NodeName(), types.MergePatchType, []byte(wireGuard(key)), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := patch("", wireGuard(free))(); err != nil {
		t.Errorf("its own WireGuard key: %v", err)
	}
	mustRefuse(t, map[string]func() error{
		"takes the server's WireGuard key": patch("", wireGuard(key)),
		"gives the server another WireGuard key": func() error {
			_, err := node.CoreV1().Nodes().Patch(ctx, c.Server.NodeName(), types.MergePatchType, []byte(wireGuard(free)), metav1.PatchOptions{})
			return err
		},
		"takes all Services":                 patch("", `{"metadata":{"labels":{"kubelith.io/servicelb":"true"}}}`),
		"takes all Services with its status": patch("status", `{"metadata":{"labels":{"kubelith.io/servicelb":"true"}}}`),
		"becomes a server":                   patch("", `{"metadata":{"labels":{"kubelith.io/role":"server"}}}`),
		"becomes another machine":            patch("", `{"metadata":{"labels":{"kubelith.io/machine":"x"}}}`),
		"takes an external address":          patch("status", addresses(corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "1.1.1.1"})),
	})
	// The node may set internal addresses. The one of the test's host stands for a registry: no kubelet runs there.
	if err := patch("status", addresses(at(c.Server.NodeIP), at(c.Server.HostIP), at("1.1.1.1"), at("127.0.0.1"), at("10.43.0.1")))(); err != nil {
		t.Fatal(err)
	}
	awaitEvent(t, c, "default", "AddressNotUsed", c.Server.NodeIP+" is an address of the API server; 127.0.0.1 is not an address at which other machines can reach a node; 10.43.0.1 is in the network of pods or Services")
	service(t, c, ns, "new", func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Spec.Ports = svc.Spec.Ports[1:]
	})
	addressesOf(t, c, ns, "new", c.Server.NodeIP, agent.NodeIP)
	addressesOf(t, c, ns, "wanted", c.Server.NodeIP, agent.NodeIP)
}
