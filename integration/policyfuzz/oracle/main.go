// Command oracle says what network policies make of connections, by the engine of sigs.k8s.io/kube-network-policies. It is a
// module of its own: the engine's dependencies are not the product's.
//
// It reads cases from its standard input, one JSON object a line (Case), and answers each with a line (a list of Verdict).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/kube-network-policies/pkg/api"
	"sigs.k8s.io/kube-network-policies/pkg/network"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
	"sigs.k8s.io/kube-network-policies/pkg/podinfo"
)

// Case is a cluster, as the API server would list it, and questions about it.
type Case struct {
	Namespaces []*corev1.Namespace           `json:"namespaces"`
	Pods       []*corev1.Pod                 `json:"pods"`
	Policies   []*networkingv1.NetworkPolicy `json:"policies"`
	Questions  []Question                    `json:"questions"`
}

// Question is about the first packet of a connection.
type Question struct {
	From     string          `json:"from"`            // address
	To       string          `json:"to"`              // address
	ToPod    string          `json:"toPod,omitempty"` // NAMESPACE/NAME of the pod that it belongs to, in place of the one with that address
	Protocol corev1.Protocol `json:"protocol"`
	Port     int             `json:"port"`
}

// Verdict says whether each end's policies allow it.
type Verdict struct {
	Egress  bool `json:"egress"`
	Ingress bool `json:"ingress"`
}

func main() {
	in := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	client, err := kubernetes.NewForConfig(&rest.Config{}) // is never asked
	for decoder := json.NewDecoder(in); err == nil && decoder.More(); {
		var c Case
		if err = decoder.Decode(&c); err != nil {
			break
		}
		var verdicts []Verdict
		if verdicts, err = answer(client, &c); err == nil {
			err = out.Encode(verdicts)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}

func answer(client kubernetes.Interface, c *Case) ([]Verdict, error) {
	factory := informers.NewSharedInformerFactory(client, 0) // never started: its stores are filled here
	namespaces, pods, policies := factory.Core().V1().Namespaces(), factory.Core().V1().Pods(), factory.Networking().V1().NetworkPolicies()
	resolver, err := podinfo.NewInformerResolver(pods.Informer())
	if err != nil {
		return nil, err
	}
	for _, o := range c.Namespaces {
		err = add(err, namespaces.Informer(), o)
	}
	for _, o := range c.Pods {
		err = add(err, pods.Informer(), o)
	}
	for _, o := range c.Policies {
		err = add(err, policies.Informer(), o)
	}
	if err != nil {
		return nil, err
	}
	known := podinfo.NewInformerProvider(pods, namespaces, nil, []podinfo.IPResolver{resolver})
	engine := networkpolicy.NewStandardNetworkPolicy("", namespaces, pods, policies)
	verdicts := make([]Verdict, 0, len(c.Questions))
	for _, q := range c.Questions {
		packet := &network.Packet{
			Family: corev1.IPv4Protocol, SrcIP: net.ParseIP(q.From), DstIP: net.ParseIP(q.To), Proto: q.Protocol, SrcPort: 40000, DstPort: q.Port,
		}
		if packet.SrcIP == nil || packet.DstIP == nil {
			return nil, fmt.Errorf("no addresses: %q, %q", q.From, q.To)
		}
		if packet.DstIP.To4() == nil {
			packet.Family = corev1.IPv6Protocol
		}
		from, _ := known.GetPodInfoByIP(q.From)
		to, _ := known.GetPodInfoByIP(q.To)
		if q.ToPod != "" {
			o, found, err := pods.Informer().GetStore().GetByKey(q.ToPod)
			if err != nil || !found {
				return nil, fmt.Errorf("no pod %s: %v", q.ToPod, err)
			}
			pod := o.(*corev1.Pod)
			namespace, err := namespaces.Lister().Get(pod.Namespace)
			if err != nil {
				return nil, err
			}
			to = api.NewPodInfo(pod, namespace.Labels, nil, "")
		}
		egress, err := engine.EvaluateEgress(context.Background(), packet, from, to)
		if err != nil {
			return nil, err
		}
		ingress, err := engine.EvaluateIngress(context.Background(), packet, from, to)
		if err != nil {
			return nil, err
		}
		verdicts = append(verdicts, Verdict{egress != api.VerdictDeny, ingress != api.VerdictDeny})
	}
	return verdicts, nil
}

func add(before error, informer cache.SharedIndexInformer, object any) error {
	if before != nil {
		return before
	}
	return informer.GetStore().Add(object)
}
