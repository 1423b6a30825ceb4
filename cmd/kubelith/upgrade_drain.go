package kubelith

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/kubectl/pkg/drain"

	"kubelith.io/kubelith/base/nodepatch"
	"kubelith.io/kubelith/base/oneline"
)

// cordoned is the annotation of a Node that an upgrade has cordoned: it uncordons no other.
const cordoned = "kubelith.io/upgrade-cordoned"

// evictAgainEvery is the time between two evictions of a pod whose budget does not allow one: kubectl's.
const evictAgainEvery = 5 * time.Second

// cordon keeps new pods off a node, and notes that it was not an administrator who did.
func (r *rollout) cordon(ctx context.Context, name string) error {
	n, err := r.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil || n.Spec.Unschedulable {
		return err
	}
	return r.patchNode(ctx, name, map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{cordoned: ""}}, "spec": map[string]any{"unschedulable": true},
	})
}

// drain moves the pods of a cordoned node elsewhere before it is upgraded, as kubectl drain does with
// --ignore-daemonsets and --delete-emptydir-data: budgets are respected, and a pod without a controller is an error,
// since nothing would start it again.
func (r *rollout) drain(ctx context.Context, name string) error {
	r.say("%s: draining", name)
	h := &drain.Helper{
		Ctx: ctx, Client: r.client, IgnoreAllDaemonSets: true, DeleteEmptyDirData: true, GracePeriodSeconds: -1, Timeout: r.o.Within,
		EvictErrorRetryDelay: evictAgainEvery, Out: io.Discard, ErrOut: io.Discard,
		OnPodDeletionOrEvictionFinished: func(pod *corev1.Pod, _ bool, err error) {
			if err == nil {
				r.say("%s: pod %s/%s is gone", name, pod.Namespace, pod.Name)
			}
		},
	}
	err := drain.RunNodeDrain(h, name)
	if err == nil {
		return nil
	}
	if why := r.budgets(ctx, h, name); why != "" {
		return fmt.Errorf("it cannot be drained within %s: %s", r.o.Within, why)
	}
	text := strings.ReplaceAll(err.Error(), " (use --force to override)", "") // a flag of kubectl's
	return fmt.Errorf("it cannot be drained: %s", oneline.Of(text))           // the library writes several lines
}

// budgets names the PodDisruptionBudgets that keep pods on a node; empty if they are not the reason, or cannot be read.
func (r *rollout) budgets(ctx context.Context, h *drain.Helper, name string) string {
	left, errs := h.GetPodsForDeletion(name)
	all, err := r.client.PolicyV1().PodDisruptionBudgets("").List(ctx, metav1.ListOptions{})
	if len(errs) > 0 || err != nil {
		return ""
	}
	var keep []string
	for _, b := range all.Items {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || b.Status.DisruptionsAllowed > 0 {
			continue
		}
		for _, pod := range left.Pods() {
			if pod.DeletionTimestamp == nil && pod.Namespace == b.Namespace && selector.Matches(labels.Set(pod.Labels)) {
				keep = append(keep, fmt.Sprintf("the PodDisruptionBudget %s/%s does not allow the eviction of pod %s", b.Namespace, b.Name, pod.Name))
			}
		}
	}
	return strings.Join(keep, "; ")
}

// uncordon lets pods come back to a node that drain has cordoned, in this run or in one before.
func (r *rollout) uncordon(ctx context.Context, name string) error {
	n, err := r.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, ours := n.Annotations[cordoned]; !ours {
		return nil
	}
	return r.patchNode(ctx, name, map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{cordoned: nil}}, "spec": map[string]any{"unschedulable": nil},
	})
}

func (r *rollout) patchNode(ctx context.Context, name string, change map[string]any) error {
	_, err := nodepatch.Merge(ctx, r.client, name, change)
	return err
}
