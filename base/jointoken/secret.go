package jointoken

import (
	"context"
	"crypto/subtle"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstrap "k8s.io/cluster-bootstrap/token/util"

	"kubelith.io/kubelith/base/names"
)

// Annotations of a token's Secret.
const (
	onceAnnotation = "kubelith.io/once" // "true": for one machine
	usedAnnotation = "kubelith.io/used" // the machine that used it, from Spend
)

// Usages of a token: an agent needs the first two.
const (
	UsageAuthentication = "authentication"
	UsageSigning        = "signing"
	// UsageServer is for a machine that becomes a server, which gets the cluster's keys. It implies the others, and
	// Once.
	UsageServer = "server"
)

// ServerTTL is how long a token for a server is valid at most.
const ServerTTL = time.Hour

// Spec configures a new token.
type Spec struct {
	TTL         time.Duration // 0: it never expires
	Usages      []string      // none: all
	Description string
	Once        bool // for one machine
}

// Validate returns the error in one line.
func (s Spec) Validate() error {
	if s.TTL < 0 {
		return fmt.Errorf("lifetime %s is negative: use a positive one, such as 24h, or 0 for a token that never expires", s.TTL)
	}
	for _, u := range s.Usages {
		if !slices.Contains(append([]string{UsageServer}, bootstrapapi.KnownTokenUsages...), u) {
			return fmt.Errorf("unknown usage %q: use %s, %s or both for agents, or %s", u, UsageAuthentication, UsageSigning, UsageServer)
		}
	}
	if s.server() && (s.TTL == 0 || s.TTL > ServerTTL) {
		return fmt.Errorf("a token for a server gives away the cluster's keys: its lifetime must be %s at most", ServerTTL)
	}
	return nil
}

func (s Spec) server() bool { return slices.Contains(s.Usages, UsageServer) }

// Info is the public part of a token.
type Info struct {
	ID          string
	Expires     time.Time // zero: never
	Usages      []string
	Description string
	Once, Used  bool
}

// Create creates a token for the CA with this hash.
func Create(ctx context.Context, cs kubernetes.Interface, caHash string, spec Spec) (Token, error) {
	if err := spec.Validate(); err != nil {
		return Token{}, err
	}
	id, secret, err := random()
	if err != nil {
		return Token{}, err
	}
	t := Token{CAHash: caHash, ID: id, Secret: secret}
	if _, err := cs.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, t.secret(spec, time.Now()), metav1.CreateOptions{}); err != nil {
		return Token{}, fmt.Errorf("create the token: %w", err)
	}
	return t, nil
}

// secret is the object in which Kubernetes keeps a bootstrap token.
func (t Token) secret(spec Spec, now time.Time) *corev1.Secret {
	usages, group := spec.Usages, names.JoiningAgents
	if spec.server() {
		usages, group, spec.Once = nil, names.JoiningServers, true
	}
	if len(usages) == 0 {
		usages = bootstrapapi.KnownTokenUsages
	}
	data := map[string]string{
		bootstrapapi.BootstrapTokenIDKey:          t.ID,
		bootstrapapi.BootstrapTokenSecretKey:      t.Secret,
		bootstrapapi.BootstrapTokenExtraGroupsKey: group,
	}
	for _, u := range usages {
		data[bootstrapapi.BootstrapTokenUsagePrefix+u] = "true"
	}
	if spec.TTL != 0 {
		data[bootstrapapi.BootstrapTokenExpirationKey] = formatExpiry(now.Add(spec.TTL))
	}
	if spec.Description != "" {
		data[bootstrapapi.BootstrapTokenDescriptionKey] = spec.Description
	}
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: bootstrap.BootstrapTokenSecretName(t.ID)},
		Type:       bootstrapapi.SecretTypeBootstrapToken,
		Data:       map[string][]byte{},
	}
	for key, value := range data {
		s.Data[key] = []byte(value)
	}
	if spec.Once {
		s.Annotations = map[string]string{onceAnnotation: "true"}
	}
	return s
}

// List returns the public part of all bootstrap tokens, sorted by expiry; tokens that never expire come last.
func List(ctx context.Context, cs kubernetes.Interface) ([]Info, error) {
	secrets, err := cs.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("type", string(bootstrapapi.SecretTypeBootstrapToken)).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	all := make([]Info, 0, len(secrets.Items))
	for i := range secrets.Items {
		all = append(all, info(&secrets.Items[i]))
	}
	slices.SortFunc(all, func(a, b Info) int {
		if a.Expires.IsZero() != b.Expires.IsZero() {
			if a.Expires.IsZero() {
				return 1
			}
			return -1
		}
		if order := a.Expires.Compare(b.Expires); order != 0 {
			return order
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all, nil
}

func info(s *corev1.Secret) Info {
	i := Info{
		ID:          string(s.Data[bootstrapapi.BootstrapTokenIDKey]),
		Expires:     expiry(s),
		Description: string(s.Data[bootstrapapi.BootstrapTokenDescriptionKey]),
		Once:        s.Annotations[onceAnnotation] == "true",
		Used:        s.Annotations[usedAnnotation] != "",
	}
	for _, u := range []string{UsageAuthentication, UsageSigning} {
		if string(s.Data[bootstrapapi.BootstrapTokenUsagePrefix+u]) == "true" {
			i.Usages = append(i.Usages, u)
		}
	}
	if string(s.Data[bootstrapapi.BootstrapTokenExtraGroupsKey]) == names.JoiningServers {
		i.Usages = []string{UsageServer}
	}
	return i
}

// expiry is zero for a token that never expires; an unreadable one is long ago, as in upstream.
func expiry(s *corev1.Secret) time.Time {
	text := string(s.Data[bootstrapapi.BootstrapTokenExpirationKey])
	if text == "" {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Unix(0, 0)
	}
	return at
}

// formatExpiry is how a Secret has the time at which its token expires.
func formatExpiry(at time.Time) string { return at.UTC().Format(time.RFC3339) }

// Delete removes a token: no machine can join with it any more. Nodes that joined with it stay.
func Delete(ctx context.Context, cs kubernetes.Interface, id string) error {
	err := cs.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, bootstrap.BootstrapTokenSecretName(id), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("token %s does not exist: kubelith token list shows all tokens", id)
	}
	if err != nil {
		return fmt.Errorf("delete the token %s: %w", id, err)
	}
	return nil
}

// Expire expires a token, if it exists; upstream's token-cleaner removes it.
func Expire(ctx context.Context, cs kubernetes.Interface, id string, now time.Time) error {
	secrets := cs.CoreV1().Secrets(metav1.NamespaceSystem)
	secret, err := secrets.Get(ctx, bootstrap.BootstrapTokenSecretName(id), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the token %s: %w", id, err)
	}
	secret.Data[bootstrapapi.BootstrapTokenExpirationKey] = []byte(formatExpiry(now))
	if _, err := secrets.Update(ctx, secret, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("expire token %s: %w", id, err)
	}
	return nil
}

// Valid reports whether the Secret lets a machine join with t for at least this long.
func (t Token) Valid(s *corev1.Secret, now time.Time, left time.Duration) bool {
	i := info(s)
	return i.ID == t.ID &&
		subtle.ConstantTimeCompare(s.Data[bootstrapapi.BootstrapTokenSecretKey], []byte(t.Secret)) == 1 &&
		len(i.Usages) == 2 && !i.Once &&
		(i.Expires.IsZero() || i.Expires.After(now.Add(left)))
}
