package api

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/integration/harness"
)

// users is the password file that the server starts with.
const users = "alices-password,alice,2001,\"team,ops\"\n\"b:o,b\"\"s \",bob,2002\ncarls-password,carl,2003\n"

// withPassword is a client that has only a password.
func withPassword(t *testing.T, s *harness.Server, user, password string) kubernetes.Interface {
	t.Helper()
	cfg := rest.AnonymousClientConfig(s.RESTConfig(t))
	cfg.Username, cfg.Password = user, password
	return clientFor(t, cfg)
}

// whoAmI returns the user that the API server takes a client for.
func whoAmI(t *testing.T, c kubernetes.Interface) (string, error) {
	t.Helper()
	review, err := c.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	u := review.Status.UserInfo
	return fmt.Sprint(u.Username, " ", u.UID, " ", u.Groups), nil
}

// TestPasswordFile: users of the file authenticate by their password, with kubectl too, and have what RBAC gives them.
// The file is read again when it changes, unless it is broken or open to others.
func TestPasswordFile(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	logged := func(line string) {
		t.Helper()
		harness.Eventually(t, 20*time.Second, "the log to have "+line, func() error {
			if !strings.Contains(s.Logs(), line) {
				return fmt.Errorf("it does not")
			}
			return nil
		})
	}
	logged("3 users of " + usersFile + " log in with a password")

	for _, tc := range []struct{ user, password, want string }{
		{"alice", "alices-password", "alice 2001 [team ops system:authenticated]"},
		{"bob", `b:o,b"s `, "bob 2002 [system:authenticated]"},
	} {
		if got, err := whoAmI(t, withPassword(t, s, tc.user, tc.password)); err != nil || got != tc.want {
			t.Errorf("%s is %q, %v", tc.user, got, err)
		}
		// Also with the administrator's kubeconfig, which has a certificate.
		var review authenticationv1.SelfSubjectReview
		if err := json.Unmarshal([]byte(s.Kubectl(t, "--username", tc.user, "--password", tc.password, "auth", "whoami", "-o=json")), &review); err != nil || review.Status.UserInfo.Username != tc.user {
			t.Errorf("kubectl is %+v, %v", review.Status.UserInfo, err)
		}
	}
	ns := s.Namespace(t)
	s.Kubectl(t, "-n", ns, "create", "rolebinding", "team", "--clusterrole=view", "--group=team")
	harness.Eventually(t, 20*time.Second, "the group's rights", func() error {
		_, err := withPassword(t, s, "alice", "alices-password").CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		return err
	})
	if _, err := withPassword(t, s, "bob", `b:o,b"s `).CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("bob lists pods: %v", err)
	}

	for _, c := range []kubernetes.Interface{withPassword(t, s, "alice", "guessed-password"), withPassword(t, s, "mallory", "guessed-password")} {
		if got, err := whoAmI(t, c); !apierrors.IsUnauthorized(err) {
			t.Errorf("with a wrong password: %q, %v", got, err)
		}
	}
	res := s.TryKubectl(t, "--username=alice", "--password=guessed-password", "get", "nodes")
	if res.Code == 0 || !strings.Contains(res.Stderr, "must be logged in") && !strings.Contains(res.Stderr, "Unauthorized") {
		t.Errorf("kubectl with a wrong password: %+v", res)
	}
	logged("wrong user name or password from " + s.HostIP)

	change := func(text string, mode os.FileMode) {
		t.Helper()
		fresh := s.Path(usersFile + ".new")
		if err := os.WriteFile(fresh, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(fresh, s.Path(usersFile)); err != nil {
			t.Fatal(err)
		}
	}
	changed := strings.Replace(users, "alices-password", "another-password", 1)
	change(changed, 0o600)
	harness.Eventually(t, 30*time.Second, "the new password", func() error {
		_, err := whoAmI(t, withPassword(t, s, "alice", "another-password"))
		return err
	})
	if got, err := whoAmI(t, withPassword(t, s, "alice", "alices-password")); !apierrors.IsUnauthorized(err) {
		t.Errorf("with the old password: %q, %v", got, err)
	}
	for line, broken := range map[string]struct {
		text string
		mode os.FileMode
	}{
		usersFile + ": line 4: it has 2 of the fields":                     {strings.Replace(users, "alices", "broken", 1) + "a,b\n", 0o600},
		usersFile + ": users other than its owner may read or write it (m": {strings.Replace(users, "alices", "broken", 1), 0o644},
	} {
		change(broken.text, broken.mode)
		logged(line)
		if _, err := whoAmI(t, withPassword(t, s, "alice", "another-password")); err != nil {
			t.Errorf("%s: the content of before: %v", line, err)
		}
	}

	// Guesses for one user of one client are limited, the right one among them too; others are not affected.
	// They come at once: one a second is forgiven.
	var guesses sync.WaitGroup
	for i := range 15 {
		carl := withPassword(t, s, "carl", fmt.Sprint("guess-", i))
		guesses.Go(func() {
			if got, err := whoAmI(t, carl); !apierrors.IsUnauthorized(err) {
				t.Errorf("guess %d: %q, %v", i, got, err)
			}
		})
	}
	guesses.Wait()
	logged("too many wrong passwords for a user from " + s.HostIP)
	if _, err := whoAmI(t, withPassword(t, s, "bob", `b:o,b"s `)); err != nil {
		t.Errorf("bob, after guesses for carl: %v", err)
	}
	harness.Eventually(t, 20*time.Second, "carl to get in with the right password", func() error {
		_, err := whoAmI(t, withPassword(t, s, "carl", "carls-password"))
		return err
	})

	events := auditEvents(t, s)
	if !slices.ContainsFunc(events, func(e event) bool {
		return e.User.Username == "alice" && e.ObjectRef != nil && e.ObjectRef.Resource == "pods" && e.Verb == "list"
	}) {
		t.Error("the audit log does not have that alice lists pods")
	}
	audit, err := os.ReadFile(s.Path(auditLog))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"alices-password", "another-password", "guessed-password", "broken-password", "guess-1", `b:o,b`, "carls-password"} {
		if strings.Contains(s.Logs(), secret) || strings.Contains(string(audit), secret) {
			t.Errorf("a log has the password %s", secret)
		}
	}
}
