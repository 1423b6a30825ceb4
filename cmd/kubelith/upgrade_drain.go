package kubelith

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubectl/pkg/drain"
)

// cordoned is the annotation of a Node that an upgrade has cordoned: it uncordons no other.
const cordoned = "kubelith.io/upgrade-cordoned"

// drain moves the pods of a node elsewhere before it is upgraded, as kubectl drain does with --ignore-daemonsets and
// --delete-emptydir-data: budgets are respected, and a pod without a controller is an error, since nobody would start it again.
func (r *rollout) drain(ctx context.Context, name string) error {
	n, err := r.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if !n.Spec.Unschedulable {
		if err := r.patchNode(ctx, name, map[string]any{
			"metadata": map[string]any{"annotations": map[string]string{cordoned: ""}}, "spec": map[string]any{"unschedulable": true},
		}); err != nil {
			return err
		}
	}
	r.say("%s: draining", name)
	err = drain.RunNodeDrain(&drain.Helper{
		Ctx: ctx, Client: r.client, IgnoreAllDaemonSets: true, DeleteEmptyDirData: true, GracePeriodSeconds: -1, Timeout: r.o.Within,
		Out: io.Discard, ErrOut: io.Discard,
		OnPodDeletionOrEvictionFinished: func(pod *corev1.Pod, _ bool, err error) {
			if err == nil {
				r.say("%s: pod %s/%s is gone", name, pod.Namespace, pod.Name)
			}
		},
	}, name)
	if err != nil {
		return fmt.Errorf("it cannot be drained: %s", strings.Join(strings.Fields(err.Error()), " ")) // the library writes several lines
	}
	return nil
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
	patch, err := json.Marshal(change)
	if err != nil {
		return err
	}
	_, err = r.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
