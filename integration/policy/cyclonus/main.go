// Command cyclonus runs the generated cases of github.com/mattfenwick/cyclonus: policies and changes of labels, and
// their effect on connections between nine pods, by its own model of the specification. It is a separate module: its
// dependencies are not the product's.
//
// It uses the cluster of $KUBECONFIG, and prints a JSON object for each case (Case). Its program has no way to probe
// from each pod at once, which its packages have.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/mattfenwick/cyclonus/pkg/connectivity"
	"github.com/mattfenwick/cyclonus/pkg/connectivity/probe"
	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/kube"
	corev1 "k8s.io/api/core/v1"
)

// Case is what became of a case.
type Case struct {
	// Number counts from 1 to Of.
	Number, Of int
	Name       string
	// Pairs of pods were tried, on each port and protocol, and Wrong of them differed from its model. Those of a pod
	// with itself do not count: the specification leaves them open.
	Pairs, Wrong int
	// Details are the pairs by step, if some were wrong, and Error what kept the case from running.
	Details, Error string `json:",omitempty"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "cyclonus:", err)
		os.Exit(1)
	}
}

func run() error {
	cluster, err := kube.NewKubernetesForContext("")
	if err != nil {
		return err
	}
	stdout := os.Stdout
	os.Stdout = os.Stderr // its packages print
	namespaces := []string{"x", "y", "z"}
	protocols := []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	const podTimeout = 120 // seconds
	resources, err := probe.NewDefaultResources(cluster, namespaces, []string{"a", "b", "c"}, []int{80, 81}, protocols, nil, podTimeout, true, "")
	if err != nil {
		return err
	}
	interpreter := connectivity.NewInterpreter(cluster, resources, &connectivity.InterpreterConfig{
		ResetClusterBeforeTestCase:       true,
		VerifyClusterStateBeforeTestCase: true,
		PerturbationWaitSeconds:          1, // in which a policy has to apply
		BatchJobs:                        true,
		IgnoreLoopback:                   true,
	})
	pod, err := resources.GetPod("z", "c")
	if err != nil {
		return err
	}
	cases := generator.NewTestCaseGenerator(true, pod.IP, namespaces, nil, nil).GenerateAllTestCases()
	for i, c := range cases {
		result := interpreter.ExecuteTestCase(c)
		out := Case{Number: i + 1, Of: len(cases), Name: c.Description}
		if result.Err != nil {
			out.Error = result.Err.Error()
		}
		for _, step := range result.Steps {
			counts := step.LastComparison().ValueCounts(true)
			wrong := counts[connectivity.DifferentComparison]
			out.Pairs += counts[connectivity.SameComparison] + wrong
			out.Wrong += wrong
			if wrong > 0 {
				out.Details += "expected:\n" + step.SimulatedProbe.RenderTable() + "found:\n" + step.LastKubeProbe().RenderTable()
			}
		}
		line, err := json.Marshal(out)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(stdout, "%s\n", line); err != nil {
			return err
		}
	}
	return nil
}
