package jointoken

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/plugin/pkg/auth/authenticator/token/bootstrap"

	"kubelith.io/kubelith/base/names"
)

func secrets(t *testing.T, cs kubernetes.Interface) []corev1.Secret {
	t.Helper()
	list, err := cs.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// accepted returns what upstream's authenticator of the API server reads from a token: the groups, or nothing.
func accepted(t *testing.T, s *corev1.Secret, bearer string) (name string, groups []string) {
	t.Helper()
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	if err := index.Add(s); err != nil {
		t.Fatal(err)
	}
	a := bootstrap.NewTokenAuthenticator(corelisters.NewSecretLister(index).Secrets("kube-system"))
	response, ok, err := a.AuthenticateToken(t.Context(), bearer)
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		return "", nil
	}
	return response.User.GetName(), response.User.GetGroups()
}

func TestCreate(t *testing.T) {
	cs := fake.NewClientset()
	made, err := Create(t.Context(), cs, hash, Spec{TTL: time.Hour, Description: "for a test", Once: true})
	if err != nil {
		t.Fatal(err)
	}
	if parsed, err := Parse(made.String()); err != nil || parsed != made || made.CAHash != hash {
		t.Errorf("%+v is read as %+v, %v", made, parsed, err)
	}
	all := secrets(t, cs)
	if len(all) != 1 {
		t.Fatalf("%d Secrets", len(all))
	}
	name, groups := accepted(t, &all[0], made.Bearer())
	if name != "system:bootstrap:"+made.ID || !slices.Equal(groups, []string{"system:bootstrappers", names.JoiningAgents}) {
		t.Errorf("the API server takes it for %q in %v", name, groups)
	}
	got := info(&all[0])
	if left := time.Until(got.Expires); left > time.Hour || left < 59*time.Minute {
		t.Errorf("expires in %s", left)
	}
	if got.Description != "for a test" || !got.Once || got.Used || !slices.Equal(got.Usages, []string{"authentication", "signing"}) {
		t.Errorf("%+v", got)
	}
}

func TestSpec(t *testing.T) {
	cs := fake.NewClientset()
	made, err := Create(t.Context(), cs, hash, Spec{Usages: []string{UsageSigning}})
	if err != nil {
		t.Fatal(err)
	}
	s := secrets(t, cs)[0]
	if got := info(&s); !got.Expires.IsZero() || !slices.Equal(got.Usages, []string{"signing"}) || got.Once {
		t.Errorf("%+v", got)
	}
	if name, _ := accepted(t, &s, made.Bearer()); name != "" {
		t.Errorf("without the usage authentication it is taken for %s", name)
	}
	for want, spec := range map[string]Spec{
		"lifetime -1s is negative":  {TTL: -time.Second},
		`unknown usage "sign": use`: {Usages: []string{"signing", "sign"}},
		"its lifetime must be 1h":   {Usages: []string{"server"}, TTL: 2 * time.Hour},
		"gives away the cluster's":  {Usages: []string{"server"}},
	} {
		if _, err := Create(t.Context(), cs, hash, spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %s", spec, err, want)
		}
	}
	if n := len(secrets(t, cs)); n != 1 {
		t.Errorf("%d Secrets, the wrong ones were created too", n)
	}
	made, err = Create(t.Context(), cs, hash, Spec{Usages: []string{UsageServer}, TTL: ServerTTL})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range secrets(t, cs) {
		if string(s.Data["token-id"]) != made.ID {
			continue
		}
		if got := info(&s); !got.Once || !slices.Equal(got.Usages, []string{"server"}) {
			t.Errorf("%+v", got)
		}
		if name, groups := accepted(t, &s, made.Bearer()); name == "" || slices.Contains(groups, names.JoiningAgents) || !slices.Contains(groups, names.JoiningServers) {
			t.Errorf("it is taken for %s in %v", name, groups)
		}
	}
}

func TestListAndDelete(t *testing.T) {
	cs := fake.NewClientset()
	var ids []string
	for _, ttl := range []time.Duration{0, 2 * time.Hour, time.Hour} {
		made, err := Create(t.Context(), cs, hash, Spec{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, made.ID)
	}
	slices.Reverse(ids) // the first to expire first
	list := func() (got []string) {
		t.Helper()
		all, err := List(t.Context(), cs)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range all {
			got = append(got, i.ID)
		}
		return got
	}
	if got := list(); !slices.Equal(got, ids) {
		t.Errorf("%v, want %v", got, ids)
	}
	if err := Delete(t.Context(), cs, ids[1]); err != nil {
		t.Fatal(err)
	}
	if got := list(); !slices.Equal(got, []string{ids[0], ids[2]}) {
		t.Errorf("after %s was deleted: %v", ids[1], got)
	}
	if err := Delete(t.Context(), cs, ids[1]); err == nil || err.Error() != "token "+ids[1]+" does not exist: kubelith token list shows all tokens" {
		t.Errorf("deleted twice: %v", err)
	}
}

func TestValid(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		spec   Spec
		change func(*corev1.Secret)
		want   bool
	}{
		"new":        {Spec{TTL: 24 * time.Hour}, func(*corev1.Secret) {}, true},
		"for ever":   {Spec{}, func(*corev1.Secret) {}, true},
		"near end":   {Spec{TTL: 59 * time.Minute}, func(*corev1.Secret) {}, false},
		"one usage":  {Spec{Usages: []string{UsageAuthentication}}, func(*corev1.Secret) {}, false},
		"once":       {Spec{Once: true}, func(*corev1.Secret) {}, false},
		"secret":     {Spec{}, func(s *corev1.Secret) { s.Data["token-secret"] = []byte("fedcba9876543210") }, false},
		"no secret":  {Spec{}, func(s *corev1.Secret) { delete(s.Data, "token-secret") }, false},
		"unreadable": {Spec{}, func(s *corev1.Secret) { s.Data["expiration"] = []byte("tomorrow") }, false},
	} {
		s := example.secret(tc.spec, now)
		tc.change(s)
		if got := example.Valid(s, now, time.Hour); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestSpend(t *testing.T) {
	now := time.Now()
	state := func(cs kubernetes.Interface) (used string, left time.Duration) {
		t.Helper()
		s := secrets(t, cs)[0]
		if e := expiry(&s); !e.IsZero() {
			left = e.Sub(now).Round(time.Minute)
		}
		return s.Annotations[usedAnnotation], left
	}
	type step struct{ machine, refusal string }
	taken := "token abc123 is valid for one machine only and another one has used it: create another with kubelith token create"
	for name, tc := range map[string]struct {
		spec  Spec
		steps []step
		used  string
		left  time.Duration
	}{
		"for many":                  {Spec{TTL: time.Hour}, []step{{"a", ""}, {"b", ""}}, "", time.Hour},
		"for one":                   {Spec{TTL: time.Hour, Once: true}, []step{{"a", ""}, {"b", taken}, {"a", ""}, {"c", taken}}, "a", time.Minute},
		"for one, for ever":         {Spec{Once: true}, []step{{"a", ""}}, "a", time.Minute},
		"for one, at its end":       {Spec{TTL: 10 * time.Second, Once: true}, []step{{"a", ""}}, "a", 0},
		"for one, not yet anyone's": {Spec{Once: true}, nil, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			cs := fake.NewClientset(example.secret(tc.spec, now))
			for _, s := range tc.steps {
				if refusal, err := spend(t.Context(), cs, "abc123", s.machine, now); err != nil || refusal != s.refusal {
					t.Errorf("%s: %q, %v, want %q", s.machine, refusal, err, s.refusal)
				}
			}
			if used, left := state(cs); used != tc.used || left != tc.left {
				t.Errorf("used by %q, %s left; want %q, %s", used, left, tc.used, tc.left)
			}
		})
	}
	if refusal, err := spend(t.Context(), fake.NewClientset(), "abc123", "a", now); err != nil || !strings.HasPrefix(refusal, "token abc123 was deleted: ") {
		t.Errorf("deleted: %q, %v", refusal, err)
	}
}

// Of two machines at the same moment the one whose write comes second is not admitted: it has to try again.
func TestSpendAtOnce(t *testing.T) {
	cs := fake.NewClientset(example.secret(Spec{Once: true}, time.Now()))
	cs.PrependReactor("update", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewConflict(corev1.Resource("secrets"), "bootstrap-token-abc123", nil)
	})
	if refusal, err := spend(t.Context(), cs, "abc123", "a", time.Now()); refusal != "" || !apierrors.IsConflict(err) {
		t.Errorf("%q, %v", refusal, err)
	}
}
