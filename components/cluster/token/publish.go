package token

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"

	"kubelith.io/kubelith/base/jointoken"
)

const fieldManager = "kubelith"

// discovery returns the kubeconfig that any client may read, in kubeadm's form: it names the server and its CA, and has
// no credentials.
func discovery(server string, ca []byte) (string, error) {
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"": {Server: server, CertificateAuthorityData: ca}},
	})
	return string(text), err
}

// clusterInfo returns it with the signature of a token, if there is one. The controller bootstrap-signer would sign it
// too, but later, or never when it does not run; it writes the same.
func clusterInfo(kubeconfig string, t jointoken.Token) (map[string]string, error) {
	info := map[string]string{bootstrapapi.KubeConfigKey: kubeconfig}
	if t == (jointoken.Token{}) {
		return info, nil
	}
	signature, err := jws.ComputeDetachedSignature(kubeconfig, t.ID, t.Secret)
	info[bootstrapapi.JWSSignatureKeyPrefix+t.ID] = signature
	return info, err
}

// publish leaves other keys alone: the signatures of other tokens belong to the bootstrap-signer.
func publish(ctx context.Context, cs kubernetes.Interface, namespace, name string, data map[string]string) error {
	_, err := cs.CoreV1().ConfigMaps(namespace).Apply(ctx, applycorev1.ConfigMap(name, namespace).WithData(data),
		metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if err != nil {
		return fmt.Errorf("apply ConfigMap %s/%s: %w", namespace, name, err)
	}
	return nil
}
