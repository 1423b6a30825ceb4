package jointoken

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstrap "k8s.io/cluster-bootstrap/token/util"
)

// spentFor is how long a token for one machine stays valid after its use: the machine still reads its certificate with
// it.
const spentFor = time.Minute

// Spend records that a machine, identified by something that only it has, joins with the token. For a token for one
// machine it does so before the machine is admitted, so that only one of two concurrent machines is. A refusal gives
// the reason and what to do; an error means: try again.
//
// It always checks that the token exists: the apiserver accepts a deleted one for some seconds.
//
// cs reads and updates the tokens' Secrets.
func Spend(ctx context.Context, cs kubernetes.Interface, id, machine string) (refusal string, err error) {
	return spend(ctx, cs, id, machine, time.Now())
}

func spend(ctx context.Context, cs kubernetes.Interface, id, machine string, now time.Time) (refusal string, err error) {
	secrets := cs.CoreV1().Secrets(metav1.NamespaceSystem)
	secret, err := secrets.Get(ctx, bootstrap.BootstrapTokenSecretName(id), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Sprintf("token %s was deleted: create another with kubelith token create", id), nil
	}
	if err != nil {
		return "", fmt.Errorf("read the token %s: %w", id, err)
	}
	used := secret.Annotations[usedAnnotation]
	switch {
	case secret.Annotations[onceAnnotation] != "true" || used == machine:
		return "", nil
	case used != "":
		return fmt.Sprintf("token %s is valid for one machine only and another one has used it: create another with kubelith token create", id), nil
	}
	secret.Annotations[usedAnnotation] = machine
	if end := now.Add(spentFor); expiry(secret).IsZero() || expiry(secret).After(end) {
		secret.Data[bootstrapapi.BootstrapTokenExpirationKey] = []byte(formatExpiry(end)) // upstream's token-cleaner removes it then
	}
	// With the version that was read: the second machine gets a conflict.
	if _, err := secrets.Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
		return "", fmt.Errorf("record the use of token %s: %w", id, err)
	}
	return "", nil
}
