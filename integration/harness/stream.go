package harness

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
)

// PodExec runs a command in a container through the API and returns its standard output; it fails the test when the
// command fails. An empty container name means the first one.
func (a API) PodExec(t testing.TB, pod *corev1.Pod, container string, command ...string) string {
	t.Helper()
	out, errOut, err := a.TryPodExec(t, pod, container, command...)
	if err != nil {
		t.Fatalf("exec %q in pod %s: %v\n%s%s", command, pod.Name, err, out, errOut)
	}
	return out
}

// TryPodExec is PodExec for a command that may fail.
func (a API) TryPodExec(t testing.TB, pod *corev1.Pod, container string, command ...string) (stdout, stderr string, err error) {
	t.Helper()
	if container == "" && len(pod.Spec.Containers) > 0 {
		container = pod.Spec.Containers[0].Name
	}
	var out, errOut bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), Patience(time.Minute))
	defer cancel()
	err = a.Executor(t, pod, &corev1.PodExecOptions{
		Container: container, Command: command, Stdout: true, Stderr: true,
	}).StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &errOut})
	return out.String(), errOut.String(), err
}

// Executor opens an exec of any form, over WebSocket.
func (a API) Executor(t testing.TB, pod *corev1.Pod, opts *corev1.PodExecOptions) remotecommand.Executor {
	t.Helper()
	url := a.Client(t).CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		SubResource("exec").VersionedParams(opts, scheme.ParameterCodec).URL()
	exec, err := remotecommand.NewWebSocketExecutor(a.RESTConfig(t), "GET", url.String())
	if err != nil {
		t.Fatal(err)
	}
	return exec
}

// PodLogs returns the log of a container so far.
func (a API) PodLogs(t testing.TB, pod *corev1.Pod, container string) string {
	t.Helper()
	stream, err := a.Client(t).CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: container}).Stream(t.Context())
	if err != nil {
		t.Fatalf("logs of pod %s: %v", pod.Name, err)
	}
	defer stream.Close()
	text, err := io.ReadAll(stream)
	if err != nil {
		t.Fatalf("logs of pod %s: %v", pod.Name, err)
	}
	return string(text)
}
