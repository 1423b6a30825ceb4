package kubelith

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	nodeutil "k8s.io/kubernetes/pkg/util/node"

	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodepatch"
	"kubelith.io/kubelith/base/oneline"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/components/controlplane/servers"
	"kubelith.io/kubelith/components/worker/upgrader"
	"kubelith.io/kubelith/host/upgrade"
)

// rollout upgrades the nodes of a cluster.
type rollout struct {
	o        upgrade.Options // of this server
	self     string
	client   kubernetes.Interface
	checksum string
	id       string
	drained  bool // agents are drained first

	mu sync.Mutex // of o.Out
}

const (
	// askNodesEvery is the time between two checks of a node that is being upgraded: the API server restarts too, so a
	// watch would end with it.
	askNodesEvery = time.Second
	// transferTime is what a node may take in addition to get the program, check it and copy its data.
	transferTime = 10 * time.Minute
)

// upgradeCluster upgrades all nodes, from this server. A node that goes back stops it; run again, it goes on.
func upgradeCluster(ctx context.Context, o upgrade.Options, kubeconfig string, batch int, drained bool) error {
	if batch < 1 {
		return fmt.Errorf("--batch %d: give the number of agents to upgrade at the same time", batch)
	}
	if upgrade.Interrupted(o.DataDir) { // before the claim: its API may be away
		if err := upgrade.Run(ctx, o); err != nil {
			return err
		}
	}
	settings, err := datadir.ReadSettings(o.DataDir)
	if err != nil {
		return err
	}
	cs, err := administrator(kubeconfig)
	if err != nil {
		return err
	}
	r := &rollout{o: o, self: settings.NodeName, client: cs, drained: drained, id: strconv.FormatInt(time.Now().UnixNano(), 36)}
	held, release, err := r.claim(ctx)
	if err != nil {
		return err
	}
	defer release()
	err = r.run(ctx, held, batch)
	if lost := context.Cause(held); err != nil && lost != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: this upgrade has stopped (%w)", lost, err)
	}
	return err
}

// run upgrades the other servers, this one and the agents, as long as held, the context of the claim. Only the end of
// ctx interrupts the upgrade of this server: it needs its way back.
func (r *rollout) run(ctx, held context.Context, batch int) error {
	servers, agents, err := r.preflight(held)
	if err != nil {
		return err
	}
	o := r.o
	if o.Proof.SHA256 == "" && o.Proof.Signature == "" {
		r.say("warning: %s is not verified: give --sha256 or --sig", o.File)
	}
	if r.o.File, r.checksum, err = upgrade.Put(o.File, upgrader.Dir(o.DataDir), o.Proof); err != nil {
		return err
	}
	r.o.Proof = upgrade.Proof{SHA256: r.checksum}
	for _, name := range servers {
		if err := r.node(held, name); err != nil {
			return err
		}
	}
	r.say("%s: upgrading this server", r.self)
	if err := upgrade.Run(ctx, r.o); err != nil {
		return r.stopped(r.self, err)
	}
	if held.Err() != nil {
		return held.Err()
	}
	for some := range slices.Chunk(agents, batch) {
		if err := r.together(held, some); err != nil {
			return err
		}
	}
	for _, name := range servers { // which have kept the program for agents
		if err := r.request(held, name, nil); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(upgrader.Dir(o.DataDir)); err != nil {
		return err
	}
	r.say("all %d nodes are upgraded", len(servers)+1+len(agents))
	return nil
}

func (r *rollout) say(format string, a ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.o.Out, format+"\n", a...)
}

func (r *rollout) stopped(name string, err error) error {
	return fmt.Errorf("the node %s is not upgraded, and the nodes after it are left as they are: %w", name, err)
}

// preflight returns the other servers and the agents, in order. It changes nothing.
func (r *rollout) preflight(ctx context.Context) (servers, agents []string, err error) {
	nodes, err := r.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	var here string
	for _, n := range nodes.Items {
		if n.Name == r.self {
			here = n.Status.NodeInfo.Architecture
		}
	}
	var cannot []string
	for _, n := range nodes.Items {
		role := n.Labels[names.RoleLabel]
		if n.Name == r.self || role == "" { // other nodes, such as a simulator's, do not run our program
			continue
		}
		if why := unfit(&n, here); why != "" {
			cannot = append(cannot, n.Name+": "+why)
		}
		if role == names.RoleServer {
			servers = append(servers, n.Name)
		} else {
			agents = append(agents, n.Name)
		}
	}
	all, err := awaitServersOf(ctx, r.client)
	if err != nil {
		return nil, nil, err
	}
	cannot = append(cannot, withoutNode(all, append(servers, r.self))...)
	if len(cannot) > 0 {
		return nil, nil, fmt.Errorf("nothing is upgraded: %s", strings.Join(cannot, "; "))
	}
	return servers, agents, nil
}

// withoutNode returns which servers cannot be told to upgrade, as they have no Node. It knows those that have one. A
// witness is none, and is upgraded otherwise.
func withoutNode(all []servers.Status, known []string) (cannot []string) {
	for _, s := range all {
		switch {
		case s.Witness || slices.Contains(known, s.Name):
		case s.Role == servers.RoleJoining:
			cannot = append(cannot, fmt.Sprintf("the server %s is joining: wait until it has a vote (kubelith etcd status)", orNone(s.Name)))
		default:
			cannot = append(cannot, fmt.Sprintf("the server %s has no node (--disable kubelet) on which to request its upgrade: "+
				"upgrade each machine with kubelith upgrade FILE, servers first", s.Name))
		}
	}
	return cannot
}

// unfit returns why a node cannot be upgraded from here.
func unfit(n *corev1.Node, architecture string) string {
	status, known := upgrader.StatusOf(n.Annotations)
	switch {
	case !known:
		return "its release cannot upgrade itself: upgrade it there, with kubelith upgrade FILE"
	case status.Cannot != "":
		return status.Cannot
	case !nodeutil.IsNodeReady(n):
		return "it is not Ready"
	case architecture != "" && n.Status.NodeInfo.Architecture != architecture:
		return fmt.Sprintf("its architecture is %s: upgrade it there, with kubelith upgrade FILE", n.Status.NodeInfo.Architecture)
	}
	return ""
}

// together upgrades agents at the same time. Each that has begun also ends.
func (r *rollout) together(ctx context.Context, agents []string) error {
	todo := agents
	if r.drained {
		var err error
		if todo, err = r.withoutProgram(ctx, agents); err != nil {
			return err
		}
		for _, name := range todo { // before any is drained: no pod moves from one to the next
			if err := r.cordon(ctx, name); err != nil {
				return r.stopped(name, err)
			}
		}
	}
	errs := make([]error, len(todo))
	var all sync.WaitGroup
	for i, name := range todo {
		all.Go(func() {
			errs[i] = r.agent(ctx, name)
		})
	}
	all.Wait()
	return oneline.Join(errs)
}

// withoutProgram returns those of the agents that are to be drained. The others have the program, perhaps of an upgrade
// that was interrupted, and are uncordoned.
func (r *rollout) withoutProgram(ctx context.Context, agents []string) (todo []string, err error) {
	for _, name := range agents {
		status, err := r.ask(ctx, name, &upgrader.Request{ID: r.id + "-ask", SHA256: r.checksum, Ask: true})
		switch {
		case err != nil:
			return nil, err
		case !status.Has:
			todo = append(todo, name)
			continue
		}
		r.say("%s: has the program already", name)
		if err := r.done(ctx, name); err != nil {
			return nil, err
		}
	}
	return todo, nil
}

// agent upgrades an agent. One that is not upgraded stays cordoned: an administrator has to inspect it.
func (r *rollout) agent(ctx context.Context, name string) error {
	if r.drained {
		if err := r.drain(ctx, name); err != nil {
			return r.stopped(name, err)
		}
	}
	if err := r.node(ctx, name); err != nil {
		return err
	}
	return r.done(ctx, name)
}

// done takes the request back, and lets pods come to the agent again.
func (r *rollout) done(ctx context.Context, name string) error {
	return errors.Join(r.request(ctx, name, nil), r.uncordon(ctx, name))
}

// node upgrades another node, and returns when it is Ready with the new program.
func (r *rollout) node(ctx context.Context, name string) error {
	r.say("%s: upgrading", name)
	status, err := r.ask(ctx, name, &upgrader.Request{ID: r.id, SHA256: r.checksum, Within: r.o.Within.String()})
	if err != nil {
		return err
	}
	if status.Error != "" {
		return r.stopped(name, errors.New(status.Error))
	}
	r.say("%s: Ready with the new program", name)
	return nil
}

// ask writes a request into a Node and returns the answer.
func (r *rollout) ask(ctx context.Context, name string, request *upgrader.Request) (upgrader.Status, error) {
	if err := r.request(ctx, name, request); err != nil {
		return upgrader.Status{}, r.stopped(name, err)
	}
	// Twice the time, for the return to the former program.
	ctx, cancel := context.WithTimeout(ctx, 2*r.o.Within+transferTime)
	defer cancel()
	for {
		status, last := r.look(ctx, name, request.ID)
		if last == nil {
			return status, nil
		}
		if !reconcile.Sleep(ctx, askNodesEvery) {
			return status, r.stopped(name, fmt.Errorf("%w (%w)", last, ctx.Err()))
		}
	}
}

// look returns a node's status, once that is about the request and, if it was met, the node and all servers are there.
func (r *rollout) look(ctx context.Context, name, id string) (upgrader.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	n, err := r.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return upgrader.Status{}, err
	}
	status, _ := upgrader.StatusOf(n.Annotations)
	switch {
	case status.ID != id:
		return status, errors.New("it has not answered yet")
	case status.Error != "":
		return status, nil
	case !nodeutil.IsNodeReady(n):
		return status, errors.New("it is not Ready")
	}
	all, err := serversOf(ctx, r.client)
	if err != nil {
		return status, err
	}
	for _, s := range all {
		if !s.Missing.IsZero() {
			return status, fmt.Errorf("the etcd of server %s does not answer yet", orNone(s.Name))
		}
	}
	return status, nil
}

// request writes a request into a Node, or takes it back. The API may be restarting.
func (r *rollout) request(ctx context.Context, name string, request *upgrader.Request) error {
	var value any // null removes it
	if request != nil {
		text, err := json.Marshal(request)
		if err != nil {
			return err
		}
		value = string(text)
	}
	for deadline := time.Now().Add(r.o.Within); ; {
		err := nodepatch.Annotate(ctx, r.client, name, upgrader.RequestAnnotation, value)
		if err == nil || apierrors.IsNotFound(err) || ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
		reconcile.Sleep(ctx, askNodesEvery)
	}
}
