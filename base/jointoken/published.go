package jointoken

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
)

// CAHash returns the hash of the CA that the server publishes, which new tokens must name.
func CAHash(ctx context.Context, cs kubernetes.Interface) (string, error) {
	info, err := cs.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, bootstrapapi.ConfigMapClusterInfo, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", errors.New("the server has not published its CA (ConfigMap kube-public/cluster-info): wait until kubelith server is ready")
	}
	if err != nil {
		return "", fmt.Errorf("read the server's CA: %w", err)
	}
	config, err := clientcmd.Load([]byte(info.Data[bootstrapapi.KubeConfigKey]))
	if err != nil {
		return "", fmt.Errorf("read the server's CA (ConfigMap kube-public/cluster-info): %w", err)
	}
	for _, cluster := range config.Clusters {
		if ca, err := certutil.ParseCertsPEM(cluster.CertificateAuthorityData); err == nil {
			return SPKIHash(ca[0]), nil
		}
	}
	return "", errors.New("ConfigMap kube-public/cluster-info contains no CA: restart kubelith server, which writes it again")
}

// WaitSigned waits until the signature of a token that was just created is published, not longer than the token is
// valid (ttl; 0 is for ever). Without the signature an agent takes the token for unknown.
func WaitSigned(ctx context.Context, cs kubernetes.Interface, id string, ttl, timeout time.Duration) error {
	expires := ttl > 0 && ttl < timeout
	if expires {
		timeout = ttl
	}
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		info, err := cs.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, bootstrapapi.ConfigMapClusterInfo, metav1.GetOptions{})
		return err == nil && info.Data[bootstrapapi.JWSSignatureKeyPrefix+id] != "", nil
	})
	if err != nil && expires && ctx.Err() == nil {
		return fmt.Errorf("token %s expired after %s, before the controller-manager had signed it: create one with a longer --ttl", id, ttl)
	}
	if err != nil {
		return fmt.Errorf("token %s was created but not signed within %s, and agents refuse it until it is: "+
			"check the controller-manager in the server's log", id, timeout)
	}
	return nil
}
