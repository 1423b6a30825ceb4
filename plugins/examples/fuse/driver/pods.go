package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/plugins/examples/fuse/client"
)

const (
	defaultNamespace = "kubelith-fuse"
	// Image is the default of client pods; `fuse image` writes it.
	Image = "docker.io/kubelith/fuse:" + Version

	// unusedFor is how long a client pod stays after the last pod that used its volume: the next one often comes soon.
	unusedFor = 10 * time.Second
	// reconcileEvery is how often client pods are compared with what is wanted.
	reconcileEvery = 2 * time.Second
	// startWait is how long an attachment waits for the client pod to run.
	startWait = 15 * time.Second
)

// Labels and annotations of client pods and their Secrets.
const (
	labelClient      = Name + "/client" // "true"
	labelVolume      = Name + "/volume"
	annotationVolume = Name + "/volume"
	annotationNode   = Name + "/node"
	annotationUnused = Name + "/unused-since"
)

// PodClient is the API as client pods need it.
type PodClient = kubernetes.Interface

// pods creates client pods: for each volume and node that it is attached to, a Secret, which is the record that the pod
// is wanted, and the pod. Kubernetes counts who uses a volume on a node: the first one attaches it, the last one
// detaches it. So nothing is lost when the plugin ends.
type pods struct {
	client    PodClient
	config    Config
	log       hclog.Logger
	said      map[string]string // by Secret: the last error
	unusedFor time.Duration
}

func newPods(c PodClient, config Config, log hclog.Logger) *pods {
	return &pods{client: c, config: config, log: log, said: map[string]string{}, unusedFor: unusedFor}
}

// podName of the client of a volume on a node, and of its Secret.
func podName(volume, node string) string {
	sum := sha256.Sum256([]byte(volume + "\n" + node))
	return "client-" + hex.EncodeToString(sum[:8])
}

var notInLabels = regexp.MustCompile(`[^A-Za-z0-9_.-]`)

// labelValue returns a volume id as a label can have it.
func labelValue(id string) string {
	id = notInLabels.ReplaceAllString(id, "_")
	return id[:min(len(id), 63)]
}

// want creates the client of a volume on a node, and waits a little until it runs.
func (p *pods) want(ctx context.Context, volume, node string, config client.Config) error {
	secret, err := p.secret(volume, node, config)
	if err != nil {
		return err
	}
	secrets := p.client.CoreV1().Secrets(p.config.Namespace)
	_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		var old *corev1.Secret
		if old, err = secrets.Get(ctx, secret.Name, metav1.GetOptions{}); err == nil {
			old.Labels, old.Annotations, old.Data = secret.Labels, secret.Annotations, secret.Data
			_, err = secrets.Update(ctx, old, metav1.UpdateOptions{})
		}
	}
	if err != nil {
		return p.explain("write the Secret of the client pod", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	for {
		pod, err := p.make(ctx, secret)
		if err != nil {
			return err
		}
		reason := waiting(pod)
		if reason == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return status.Errorf(codes.Unavailable, "the client pod %s/%s does not run: %s", pod.Namespace, pod.Name, reason)
		case <-time.After(pollEvery):
		}
	}
}

// make returns the pod of a Secret, a new one if there is none.
func (p *pods) make(ctx context.Context, secret *corev1.Secret) (*corev1.Pod, error) {
	api := p.client.CoreV1().Pods(p.config.Namespace)
	pod, err := api.Get(ctx, secret.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if pod, err = api.Create(ctx, p.pod(secret), metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			pod, err = api.Get(ctx, secret.Name, metav1.GetOptions{})
		}
	}
	if err != nil {
		return nil, p.explain("make the client pod "+secret.Name, err)
	}
	return pod, nil
}

// waiting returns why a pod does not run; empty: it does.
func waiting(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return "an earlier one is being deleted"
	}
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && w.Reason != "ContainerCreating" {
			return w.Reason + ": " + w.Message
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Status == corev1.ConditionFalse && c.Message != "" {
			return c.Message
		}
	}
	if pod.Status.Phase != corev1.PodRunning {
		return "it is " + string(pod.Status.Phase)
	}
	return ""
}

// unwant notes that a node does not use a volume any more; without a node: none does.
func (p *pods) unwant(ctx context.Context, volume, node string) error {
	return p.each(ctx, volume, func(s *corev1.Secret) bool {
		if node != "" && s.Annotations[annotationNode] != node || s.Annotations[annotationUnused] != "" {
			return false
		}
		s.Annotations[annotationUnused] = time.Now().UTC().Format(time.RFC3339)
		return true
	})
}

// resize writes the capacity into the Secrets of a volume: the next clients read it there.
func (p *pods) resize(ctx context.Context, volume string, size int64) error {
	return p.each(ctx, volume, func(s *corev1.Secret) bool {
		var config client.Config
		if json.Unmarshal(s.Data[configFile], &config) != nil || config.Capacity == size {
			return false
		}
		config.Capacity = size
		text, err := json.Marshal(config)
		s.Data[configFile] = text
		return err == nil
	})
}

// each updates the Secrets of a volume that f changes.
func (p *pods) each(ctx context.Context, volume string, f func(*corev1.Secret) bool) error {
	list, err := p.client.CoreV1().Secrets(p.config.Namespace).List(ctx, metav1.ListOptions{LabelSelector: labelVolume + "=" + labelValue(volume)})
	if err != nil {
		return p.explain("find the client pods", err)
	}
	for i := range list.Items {
		s := &list.Items[i]
		if s.Annotations[annotationVolume] != volume || !f(s) {
			continue
		}
		if _, err := p.client.CoreV1().Secrets(s.Namespace).Update(ctx, s, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return p.explain("update the Secret of the client pod", err)
		}
	}
	return nil
}

// nodeExists returns NotFound for a node that is not in the cluster. Without the right to see that, all are.
func (p *pods) nodeExists(ctx context.Context, name string) error {
	_, err := p.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return status.Errorf(codes.NotFound, "there is no node %s", name)
	}
	if err != nil && !apierrors.IsForbidden(err) {
		return p.explain("get the node", err)
	}
	return nil
}

func (p *pods) explain(what string, err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return status.Errorf(codes.FailedPrecondition, "%s: %s: apply the plugin's manifest.yaml", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// run keeps the pods as they are wanted.
func (p *pods) run(ctx context.Context) {
	for {
		if err := p.reconcile(ctx); err != nil && ctx.Err() == nil {
			p.complain("", err)
		}
		sleep(ctx, reconcileEvery)
		if ctx.Err() != nil {
			return
		}
	}
}

// complain logs an error, once as long as it is the same.
func (p *pods) complain(name string, err error) {
	if p.said[name] != err.Error() {
		p.said[name] = err.Error()
		p.log.Warn("client pods", "name", name, "error", err)
	}
}

func (p *pods) reconcile(ctx context.Context) error {
	cached := metav1.ListOptions{LabelSelector: labelClient + "=true", ResourceVersion: "0"}
	secrets, err := p.client.CoreV1().Secrets(p.config.Namespace).List(ctx, cached)
	if apierrors.IsForbidden(err) {
		return nil // the mode is not used: its manifest is not applied
	}
	if err != nil {
		return err
	}
	for i := range secrets.Items {
		if err := p.reconcileOne(ctx, &secrets.Items[i]); err != nil {
			p.complain(secrets.Items[i].Name, err)
		}
	}
	return nil
}

func (p *pods) reconcileOne(ctx context.Context, secret *corev1.Secret) error {
	api := p.client.CoreV1().Pods(secret.Namespace)
	if text := secret.Annotations[annotationUnused]; text != "" {
		since, err := time.Parse(time.RFC3339, text)
		if err == nil && time.Since(since) < p.unusedFor {
			return nil
		}
		return p.remove(ctx, secret)
	}
	pod, err := p.make(ctx, secret)
	if err != nil || pod.DeletionTimestamp != nil {
		return err
	}
	ended := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
	if ended || pod.Spec.Containers[0].Image != p.config.Image {
		p.log.Info("a client pod is replaced", "pod", pod.Name, "phase", pod.Status.Phase, "image", pod.Spec.Containers[0].Image)
		err = api.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// remove a client that is not used. The Secret goes last: it is the record.
func (p *pods) remove(ctx context.Context, secret *corev1.Secret) error {
	api := p.client.CoreV1().Pods(secret.Namespace)
	pod, err := api.Get(ctx, secret.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		// Not if it was changed: then it is wanted again.
		err = p.client.CoreV1().Secrets(secret.Namespace).Delete(ctx, secret.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion}})
	case err == nil && pod.DeletionTimestamp == nil:
		err = api.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// secret is the record of a wanted client, with its configuration.
func (p *pods) secret(volume, node string, config client.Config) (*corev1.Secret, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: podName(volume, node), Namespace: p.config.Namespace,
			Labels:      map[string]string{labelClient: "true", labelVolume: labelValue(volume)},
			Annotations: map[string]string{annotationVolume: volume, annotationNode: node},
		},
		Data: map[string][]byte{configFile: text},
	}, nil
}

// pod is the client of a Secret. It needs no rights: it gets an open connection to the kernel.
func (p *pods) pod(secret *corev1.Secret) *corev1.Pod {
	var config client.Config
	_ = json.Unmarshal(secret.Data[configFile], &config) // of this program
	volume, no, yes, root, grace := secret.Annotations[annotationVolume], false, true, int64(0), int64(30)
	create := corev1.HostPathDirectoryOrCreate
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: secret.Name, Namespace: secret.Namespace, Labels: secret.Labels,
			Annotations: map[string]string{annotationVolume: volume},
		},
		Spec: corev1.PodSpec{
			NodeName:                      secret.Annotations[annotationNode],
			RestartPolicy:                 corev1.RestartPolicyAlways,
			AutomountServiceAccountToken:  &no,
			TerminationGracePeriodSeconds: &grace,
			PriorityClassName:             "system-node-critical",
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "client", Image: p.config.Image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"/fuse", "client", "/volume", "/config/" + configFile},
				SecurityContext: &corev1.SecurityContext{
					RunAsUser: &root, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
				VolumeMounts: []corev1.VolumeMount{{Name: "volume", MountPath: "/volume"}, {Name: "config", MountPath: "/config", ReadOnly: true}},
			}},
			Volumes: []corev1.Volume{
				{Name: "volume", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: p.config.Clients + "/" + volume, Type: &create}}},
				{Name: "config", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret.Name}}},
			},
		},
	}
	if d := config.Store.Directory; d != "" { // files with their owners
		c, must := &pod.Spec.Containers[0], corev1.HostPathDirectory
		c.SecurityContext.Capabilities.Add = []corev1.Capability{"CHOWN", "DAC_OVERRIDE", "FOWNER"}
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "store", MountPath: d})
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "store",
			VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: d, Type: &must}}})
	}
	return pod
}
