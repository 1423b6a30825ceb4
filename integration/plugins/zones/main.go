// Command zones is the scheduling plugin of the tests: it refuses nodes of the zone "no" to pods without the label
// anywhere, lets two pods of a team on a node, prefers the zone "best", and ends in the middle of a call for pods with
// the label crash.
package main

import (
	"context"
	"os"
	"time"

	"kubelith.io/kubelith/plugins/sdk"
)

func main() {
	sdk.ServeScheduling(sdk.Scheduling{
		Filter:         filter,
		Score:          score,
		Weight:         100, // above all of upstream's together
		Needs:          &sdk.NodeFields{Labels: true, Pods: true},
		FilterUsesPods: true,
		Timeout:        10 * time.Second, // machines of tests are slow
	})
}

func filter(_ context.Context, pod *sdk.Pod, node *sdk.Node) string {
	if _, ok := pod.GetLabels()["crash"]; ok {
		os.Exit(3)
	}
	if _, anywhere := pod.GetLabels()["anywhere"]; node.GetLabels()["zone"] == "no" && !anywhere {
		return "wrong zone"
	}
	mates := 0
	for _, p := range node.GetPods() {
		if team := pod.GetLabels()["team"]; team != "" && p.GetLabels()["team"] == team {
			mates++
		}
	}
	if mates >= 2 {
		return "two of the team are there"
	}
	return ""
}

func score(_ context.Context, _ *sdk.Pod, node *sdk.Node) int {
	if node.GetLabels()["zone"] == "best" {
		return 100
	}
	return 0
}
