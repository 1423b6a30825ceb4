// Command oracle decides which connections network policies allow, by the engine of sigs.k8s.io/kube-network-policies.
// It is a separate module: the engine's dependencies are not the product's.
//
// It reads cases from its standard input, one JSON object a line (Case), and answers each with a line (a list of
// Verdict).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"

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
	clusterpolicy "sigs.k8s.io/kube-network-policies/plugins/npa-v1alpha2"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"
	policyinformers "sigs.k8s.io/network-policy-api/pkg/client/informers/externalversions"
)

// Case is a cluster, as the API server would list it, and questions about it.
type Case struct {
	Namespaces      []*corev1.Namespace                    `json:"namespaces"`
	Pods            []*corev1.Pod                          `json:"pods"`
	Policies        []*networkingv1.NetworkPolicy          `json:"policies"`
	ClusterPolicies []*policyv1alpha2.ClusterNetworkPolicy `json:"clusterPolicies"`
	Questions       []Question                             `json:"questions"`
}

// Question is about the first packet of a connection.
type Question struct {
	From     string          `json:"from"`            // address
	To       string          `json:"to"`              // address
	ToPod    string          `json:"toPod,omitempty"` // NAMESPACE/NAME of the pod that it belongs to, in place of the one with that address
	Protocol corev1.Protocol `json:"protocol"`
	Port     int             `json:"port"`
}

// Verdict reports whether each end's policies allow it.
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
	namespaces, pods := factory.Core().V1().Namespaces(), factory.Core().V1().Pods()
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
	// NetworkPolicies of one direction for each: the engine lets any that selects a pod hide the baseline tier, also
	// one that is about the other direction only.
	var directions [2]*networkpolicy.StandardNetworkPolicy
	for i, direction := range []networkingv1.PolicyType{networkingv1.PolicyTypeEgress, networkingv1.PolicyTypeIngress} {
		policies := informers.NewSharedInformerFactory(client, 0).Networking().V1().NetworkPolicies()
		for _, o := range c.Policies {
			if slices.Contains(o.Spec.PolicyTypes, direction) {
				err = add(err, policies.Informer(), o)
			}
		}
		directions[i] = networkpolicy.NewStandardNetworkPolicy("", namespaces, pods, policies)
	}
	clusterPolicies := policyinformers.NewSharedInformerFactory(policyclient.New(nil), 0).Policy().V1alpha2().ClusterNetworkPolicies()
	for _, o := range c.ClusterPolicies {
		err = add(err, clusterPolicies.Informer(), o)
	}
	if err != nil {
		return nil, err
	}
	known := podinfo.NewInformerProvider(pods, namespaces, nil, []podinfo.IPResolver{resolver})
	admin := clusterpolicy.NewClusterNetworkPolicy(policyv1alpha2.AdminTier, clusterPolicies, nil, nil)
	baseline := clusterpolicy.NewClusterNetworkPolicy(policyv1alpha2.BaselineTier, clusterPolicies, nil, nil)
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
		decide := func(of func(api.PolicyEvaluator) (api.Verdict, error), standard *networkpolicy.StandardNetworkPolicy) (bool, error) {
			for _, tier := range []api.PolicyEvaluator{admin, standard, baseline} {
				if v, err := of(tier); err != nil || v != api.VerdictNext {
					return v == api.VerdictAccept, err
				}
			}
			return true, nil
		}
		egress, err := decide(func(e api.PolicyEvaluator) (api.Verdict, error) {
			return e.EvaluateEgress(context.Background(), packet, from, to)
		}, directions[0])
		if err != nil {
			return nil, err
		}
		ingress, err := decide(func(e api.PolicyEvaluator) (api.Verdict, error) {
			return e.EvaluateIngress(context.Background(), packet, from, to)
		}, directions[1])
		if err != nil {
			return nil, err
		}
		verdicts = append(verdicts, Verdict{egress, ingress})
	}
	return verdicts, nil
}

func add(before error, informer cache.SharedIndexInformer, object any) error {
	if before != nil {
		return before
	}
	return informer.GetStore().Add(object)
}
