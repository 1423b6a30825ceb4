// Command disk-by-label is a scheduling plugin that lets a pod with the label disk run only on nodes whose label disk
// is the same.
package main

import (
	"context"

	"kubelith.io/kubelith/plugins/sdk"
)

func main() {
	sdk.ServeScheduling(sdk.Scheduling{
		Version: "1",
		Filter:  filter,
		Needs:   &sdk.NodeFields{Labels: true},
		// A pod waits for an answer: without one it may run where its disk is not.
		MustAnswer: true,
	})
}

func filter(_ context.Context, pod *sdk.Pod, node *sdk.Node) string {
	if want := pod.Labels["disk"]; want != "" && node.Labels["disk"] != want {
		return "no disk of the kind that the pod wants"
	}
	return ""
}
