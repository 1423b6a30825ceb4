package why

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// imageReasons are the reasons for which a container waits for its image.
//
// Source: k8s.io/kubernetes/pkg/kubelet/images/types.go, k8s.io/cri-api/pkg/errors
var imageReasons = map[string]bool{
	"InvalidImageName": true, "ErrImagePull": true, "ImagePullBackOff": true, "ErrImageNeverPull": true, "ImageInspectError": true,
	"RegistryUnavailable": true, "SignatureValidationFailed": true,
}

// pullFailure is what the text of a failed pull means. Upstream has no field for it.
//
// Source: github.com/containerd/containerd/v2/core/remotes/docker (resolver.go, fetcher.go, errdefs.go), core/images
// (image.go: "no match for platform"), net/http and net for what happens before an answer.
func pullFailure(message string) Code {
	text := strings.ToLower(message)
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(text, p) {
				return true
			}
		}
		return false
	}
	switch {
	case has("no match for platform", "no matching manifest"):
		return ImageArchitecture
	case has("429 too many requests", "toomanyrequests"):
		return RegistryLimit
	case has("401 unauthorized", "403 forbidden", "failed to authorize", "authorization failed", "insufficient_scope",
		"pull access denied", "no basic auth credentials", "unauthorized:", "denied:"):
		return PullDenied
	case has("connection refused", "no such host", "i/o timeout", "no route to host", "network is unreachable", "x509:", "tls:", "server gave http response",
		"context deadline exceeded", "connection reset", "server misbehaving", "unexpected eof"):
		return RegistryUnreachable
	case has("500 internal", "502 bad gateway", "503 service unavailable", "504 gateway"):
		return RegistryUnreachable
	case has("not found", "manifest unknown", "name unknown"):
		return ImageNotFound
	}
	return PullFailed
}

// registryOf is the registry of an image: what stands before the first slash if that is a host, else Docker Hub.
//
// Source: github.com/distribution/reference, splitDockerDomain
func registryOf(image string) string {
	host, _, ok := strings.Cut(image, "/")
	if !ok || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return "docker.io"
	}
	return host
}

// imageMissing explains a container that waits for its image.
func (r *Reader) imageMissing(ctx context.Context, pod *corev1.Pod, c container) *Finding {
	waiting, image := c.status.State.Waiting, c.spec.Image
	done := func(f *Finding) *Finding {
		return f.saw(c.path()+"state.waiting", waiting.Reason+": "+waiting.Message).saw(c.specPath()+".image", image)
	}
	switch waiting.Reason {
	case "InvalidImageName":
		return done(broken(ImageNameInvalid, fmt.Sprintf("%q, the image of %s, is not a valid name", image, c))).
			not(ImageNotFound, "the registry does not have it", "no registry was asked: the name cannot be parsed").
			do(recreate(pod, "Correct the image's name (lower case, no blanks: REGISTRY/PATH:TAG)"))
	case "ErrImageNeverPull":
		return done(broken(ImageNeverPulled, fmt.Sprintf("%s may not pull its image %s (imagePullPolicy: Never), but node %s does not have it",
			c, image, pod.Spec.NodeName))).
			saw(c.specPath()+".imagePullPolicy", string(c.spec.ImagePullPolicy)).
			not(ImageNotFound, "the registry does not have it", "no registry was asked: the policy is Never").
			do(recreate(pod, "Set imagePullPolicy: IfNotPresent"), "Or import the image on that node:", "kubelith ctr -n k8s.io images import FILE.tar")
	}
	message := waiting.Message
	code := pullFailure(message)
	if e := r.LastEvent(ctx, pod, pod.CreationTimestamp, "Failed"); code == PullFailed && e != nil && strings.Contains(e.Message, image) {
		code = pullFailure(e.Message) // the back-off's own message may not repeat the cause
		defer func() { message = e.Message }()
	}
	registry := registryOf(image)
	switch code {
	case ImageNotFound:
		return done(broken(code, fmt.Sprintf("the registry %s has no image %s", registry, image))).
			not(RegistryUnreachable, "the registry cannot be reached", "it answered: not found").
			not(PullDenied, "a pull secret is missing", "it answered not found, without asking for credentials").
			do(recreate(pod, "Correct the image's name and tag, or push it,"))
	case ImageArchitecture:
		f := done(broken(code, fmt.Sprintf("%s exists, but not for the architecture of node %s", image, pod.Spec.NodeName)))
		if node, err := r.Node(ctx, pod.Spec.NodeName); err == nil {
			f.saw("node/"+node.Name+" .status.nodeInfo", node.Status.NodeInfo.OperatingSystem+"/"+node.Status.NodeInfo.Architecture)
		}
		return f.not(ImageNotFound, "the image does not exist", "the registry has an index for it, without this platform").
			do("Build and push the image for this architecture too, or select nodes of its architecture: nodeSelector kubernetes.io/arch.")
	case RegistryUnreachable:
		return done(broken(code, fmt.Sprintf("node %s cannot reach the registry %s: %s", pod.Spec.NodeName, registry, lastPart(message)))).
			not(ImageNotFound, "the image does not exist", "the registry gave no answer about it").
			do("On the node: does the name resolve, is the port open, is a proxy or a mirror needed (docs/configuration.md, registries.d)?")
	case RegistryLimit:
		return done(broken(code, fmt.Sprintf("the registry %s refuses more pulls for now: its rate limit is reached", registry))).
			do("Wait, pull with credentials (imagePullSecrets), or use a mirror.")
	case PullDenied:
		return done(r.pullDenied(ctx, pod, c, registry))
	}
	return done(broken(PullFailed, fmt.Sprintf("the image %s of %s cannot be pulled: %s", image, c, lastPart(message)))).
		do("Pull it by hand on the node to see more:", "kubelith ctr -n k8s.io images pull "+image)
}

// pullDenied explains a registry's refusal by the pull secrets.
func (r *Reader) pullDenied(ctx context.Context, pod *corev1.Pod, c container, registry string) *Finding {
	image := c.spec.Image
	create := kubectl(pod.Namespace, "create secret docker-registry NAME --docker-server=%s --docker-username=USER --docker-password=PASSWORD", registry)
	f := found(Broken, PullSecretMissing, fmt.Sprintf("the registry %s requires credentials for %s, but the pod has no imagePullSecrets", registry, image))
	f.not(RegistryUnreachable, "the registry cannot be reached", "it answered: it refuses")
	if len(pod.Spec.ImagePullSecrets) == 0 {
		return f.saw("pod/"+pod.Name+" .spec.imagePullSecrets", "empty").do(create, recreate(pod, "Then name it in imagePullSecrets,"),
			"Some registries answer the same for an image that does not exist: check its name too.")
	}
	var there []string
	for _, ref := range pod.Spec.ImagePullSecrets {
		secret, err := r.Secret(ctx, pod.Namespace, ref.Name)
		where := "secret/" + ref.Name
		switch {
		case apierrors.IsNotFound(err):
			f.Cause = fmt.Sprintf("the registry %s requires credentials for %s, but the pull secret %s does not exist in namespace %s",
				registry, image, ref.Name, pod.Namespace)
			f.saw(where, "does not exist")
		case err != nil:
			there = append(there, ref.Name)
			f.saw(where, "you may not read whether it exists")
		case secret.Type != corev1.SecretTypeDockerConfigJson && secret.Type != corev1.SecretTypeDockercfg:
			f.Cause = fmt.Sprintf("the pull secret %s is of type %s, which the kubelet does not use; it must be %s",
				ref.Name, secret.Type, corev1.SecretTypeDockerConfigJson)
			f.saw(where+" .type", string(secret.Type))
		default:
			there = append(there, ref.Name)
			f.saw(where, fmt.Sprintf("exists, type %s", secret.Type))
		}
	}
	if len(there) > 0 {
		f.Code = PullSecretWrong
		f.Cause = fmt.Sprintf("the registry %s refuses %s with the credentials in the pull secret %s", registry, image, strings.Join(there, ", "))
		f.not(PullSecretMissing, "the pull secret is missing", "it exists")
		return f.do(fmt.Sprintf("Correct user and password for %s in the secret, and check that it names exactly this registry; delete it, then:", registry), create,
			"Some registries answer the same for an image that does not exist: check its name too.")
	}
	return f.do(create)
}

// lastPart is the end of a chain of wrapped errors, where the cause stands.
func lastPart(message string) string {
	parts := strings.Split(sentence(message), ": ")
	return strings.Join(parts[max(0, len(parts)-2):], ": ")
}
