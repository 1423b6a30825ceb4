// Command scorer scores nodes by their memory: as a scheduling plugin, or with -extender=ADDRESS as an HTTP extender of
// kube-scheduler. bench/plugins compares the two. Its number shifts the scores: several
// of them disagree. A plugin's is the end of its name, an extender's its argument.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"kubelith.io/kubelith/plugins/sdk"
)

// formula is 0 to 100 for a node with this much memory.
func formula(memory int64, number int) int { return int((memory>>30)+int64(33*number)) % 101 }

func main() {
	extender := flag.String("extender", "", "address to serve an extender at, instead of a plugin")
	nodes := flag.Int("nodes", 0, "how many nodes an extender knows")
	flag.Parse()
	if *extender == "" {
		servePlugin()
		return
	}
	number, err := strconv.Atoi(flag.Arg(0))
	if err == nil {
		err = serveExtender(*extender, *nodes, number)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// servePlugin needs what pods request on a node, which the formula does not need: so there is something to send for
// each pod, as for a plugin that packs.
func servePlugin() {
	number := 0
	sdk.ServeScheduling(sdk.Scheduling{
		Configure: func(c sdk.Config) error {
			var err error
			number, err = strconv.Atoi(c.Name[len(c.Name)-1:])
			return err
		},
		Score: func(_ context.Context, _ *sdk.Pod, node *sdk.Node) int {
			return formula(node.GetAllocatable().GetMemory(), number)
		},
		Needs:   &sdk.NodeFields{Allocatable: true, Requested: true},
		Timeout: 5 * time.Second, // a failed call is no result
	})
}

// memory of a hollow node.
func memory(i int) int64 { return int64(32+i%101) << 30 }

// serveExtender knows the nodes (nodeCacheCapable): it is sent their names only, and spends nothing on following
// changes.
func serveExtender(address string, nodes, number int) error {
	scores := make(map[string]int64, nodes)
	for i := range nodes {
		scores[fmt.Sprintf("hollow-%d", i)] = int64(formula(memory(i), number)) * extenderv1.MaxExtenderPriority / 100
	}
	var served atomic.Int64
	return http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/served" {
			fmt.Fprintln(w, served.Load())
			return
		}
		served.Add(1)
		var args extenderv1.ExtenderArgs
		if err := json.NewDecoder(r.Body).Decode(&args); err != nil || args.NodeNames == nil {
			http.Error(w, fmt.Sprintf("no names of nodes: %v", err), http.StatusBadRequest)
			return
		}
		out := make(extenderv1.HostPriorityList, len(*args.NodeNames))
		for i, name := range *args.NodeNames {
			out[i] = extenderv1.HostPriority{Host: name, Score: scores[name]}
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(out)
	}))
}
