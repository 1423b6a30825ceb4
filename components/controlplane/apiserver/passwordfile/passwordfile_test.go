package passwordfile

import (
	"bytes"
	"context"
	"crypto/subtle"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, text string) *File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users.csv")
	write(t, path, text)
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// login returns what a request with a password gets: the user with uid and groups, or the error.
func login(f *File, name, password string) string {
	req := httptest.NewRequest(http.MethodGet, "/api", nil) // from 192.0.2.1
	req.SetBasicAuth(name, password)
	return ask(f, req)
}

func ask(f *File, req *http.Request) string {
	response, ok, err := f.AuthenticateRequest(req)
	switch {
	case err != nil:
		return err.Error()
	case !ok:
		return "nobody"
	}
	return fmt.Sprint(response.User.GetName(), " ", response.User.GetUID(), " ", response.User.GetGroups())
}

const wrong = "wrong user name or password from 192.0.2.1"

func TestLogin(t *testing.T) {
	f := open(t, "\ufeffsecret,alice,1,\"team,ops\"\r\n\r\n\"a:b,\"\"c\"\" \",bob,2,team\npass word,carl,3,\nsecret,dora,\n"+strings.Repeat("x", 1000)+",eve,5")
	for _, tc := range []struct{ name, password, want string }{
		{"alice", "secret", "alice 1 [team ops]"},
		{"bob", `a:b,"c" `, "bob 2 [team]"},
		{"carl", "pass word", "carl 3 []"},
		{"dora", "secret", "dora  []"},
		{"eve", strings.Repeat("x", 1000), "eve 5 []"},
		{"eve", strings.Repeat("x", 999), wrong},
		{"alice", "secret ", wrong},
		{"alice", "Secret", wrong},
		{"alice", "", wrong},
		{"Alice", "secret", wrong},
		{"frank", "secret", wrong},
		{"", "", wrong},
	} {
		if got := login(f, tc.name, tc.password); got != tc.want {
			t.Errorf("%+v: %s", tc, got)
		}
	}
	for _, header := range []string{"", "Bearer c2VjcmV0", "Basic", "Basic !", "Basic YWxpY2U="} {
		req := httptest.NewRequest(http.MethodGet, "/api", nil)
		req.Header.Set("Authorization", header)
		if got := ask(f, req); got != "nobody" {
			t.Errorf("%q: %s", header, got)
		}
	}
}

// TestSameWork: every attempt is one comparison in constant time of values of one length, whether the user exists or
// not.
func TestSameWork(t *testing.T) {
	f := open(t, "secret,alice,1\n"+strings.Repeat("x", 300)+",bob,2\n")
	var compared []string
	f.compare = func(a, b []byte) int {
		compared = append(compared, fmt.Sprint(len(a), " ", len(b)))
		return subtle.ConstantTimeCompare(a, b)
	}
	for _, name := range []string{"alice", "bob", "nobody", ""} {
		for _, password := range []string{"secret", "", strings.Repeat("y", 500)} {
			compared = nil
			login(f, name, password)
			if len(compared) != 1 || compared[0] != "32 32" {
				t.Errorf("%q with %d bytes: %v", name, len(password), compared)
			}
		}
	}
	if one, other := open(t, "a,b,c").unknown.digest, open(t, "a,b,c").unknown.digest; one == other || one == [32]byte{} {
		t.Error("the digest of users that do not exist is not random")
	}
}

// TestErrorsSayNothing: neither the password nor the user is in what is logged.
func TestErrorsSayNothing(t *testing.T) {
	f := open(t, "secret,alice,1\n")
	for range 2 * wrongAtOnce {
		for _, name := range []string{"alice", "geheim"} {
			if got := login(f, name, "geheim"); strings.Contains(got, "geheim") || strings.Contains(got, "alice") {
				t.Fatal(got)
			}
		}
	}
}

func TestGuesses(t *testing.T) {
	f := open(t, "secret,alice,1\nsecret,bob,2\n")
	now := time.Now()
	f.guesses.now = func() time.Time { return now }
	const many = "too many wrong passwords for a user from 192.0.2.1: the next one is checked in a second"
	for i := range wrongAtOnce {
		if got := login(f, "alice", fmt.Sprint(i)); got != wrong {
			t.Fatalf("guess %d: %s", i, got)
		}
	}
	for _, password := range []string{"x", "secret"} {
		if got := login(f, "alice", password); got != many {
			t.Errorf("%s: %s", password, got)
		}
	}
	if got := login(f, "bob", "secret"); got != "bob 2 []" {
		t.Errorf("another user: %s", got)
	}
	elsewhere := httptest.NewRequest(http.MethodGet, "/api", nil)
	elsewhere.RemoteAddr = "192.0.2.2:1"
	elsewhere.SetBasicAuth("alice", "secret")
	if got := ask(f, elsewhere); got != "alice 1 []" {
		t.Errorf("from elsewhere: %s", got)
	}
	now = now.Add(time.Second)
	for i, want := range []string{wrong, many} {
		if got := login(f, "alice", "x"); got != want {
			t.Errorf("a second later, guess %d: %s", i, got)
		}
	}
	now = now.Add(time.Second)
	if got := login(f, "alice", "secret"); got != "alice 1 []" {
		t.Errorf("two seconds later: %s", got)
	}
	// Users that do not exist share one count, so that an answer does not show which do.
	for i := range wrongAtOnce {
		login(f, fmt.Sprint("nobody", i), "x")
	}
	if got := login(f, "other", "x"); got != many {
		t.Errorf("users that do not exist: %s", got)
	}
}

func TestGuessesAreBounded(t *testing.T) {
	var g guesses
	now := time.Now()
	g.now = func() time.Time { return now }
	for i := range 2 * maxGuesses {
		g.try(guess{"a", fmt.Sprint(i)}, func() bool { return false })
	}
	if len(g.wrong) != maxGuesses {
		t.Errorf("%d are remembered", len(g.wrong))
	}
	now = now.Add(2 * time.Second)
	g.try(guess{"a", "new"}, func() bool { return false })
	if len(g.wrong) != 1 {
		t.Errorf("of those that are over %d are remembered", len(g.wrong))
	}
}

func TestSource(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:1234": "192.0.2.1", "[::ffff:192.0.2.1]:5": "192.0.2.1", "[2001:db8:1:2:3::4]:5": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:1": "fe80::/64", "pipe": "pipe", "": "", "host:1": "host",
	} {
		if got := source(remote); got != want {
			t.Errorf("%q: %q, want %q", remote, got, want)
		}
	}
}

// TestBrokenLines: the line is named, and nothing of it is repeated.
func TestBrokenLines(t *testing.T) {
	for text, want := range map[string]string{
		"ok,alice,1\ngeheim\n":                              "line 2: it has 1 of the fields",
		"ok,alice,1\n\n\ngeheim,bob":                        "line 4: it has 2 of the fields",
		"geheim,bob,2,team,ops\n":                           "line 1: it has 5 fields: several groups are one field",
		"ok,alice,1\n,bob,2\n":                              "line 2: the password is empty",
		"ok,alice,1\ngeheim,,2\n":                           "line 2: the user name is empty",
		"ok,alice,1\ngeheim,bob,2\ngeheim,alice,3\n":        "line 3: its user is also that of line 1",
		"geheim,a:b,1\n":                                    "line 1: the user name has a colon",
		"geheim,system:kube-scheduler,1\n":                  "line 1: user names with system:",
		"geheim,bob,1,\"team,\"\n":                          "line 1: a group is empty",
		"geheim,bob,1,\"team, ops\"\n":                      "line 1: a user name, uid or group begins or ends with a space",
		"geheim, bob,1\n":                                   "line 1: a user name, uid or group",
		"geheim,bob,1 \n":                                   "line 1: a user name, uid or group",
		"ok,alice,1\nge\"heim,bob,2\n":                      "line 2: a field with a quote",
		"ok,alice,1\n\"geheim\"x,bob,2\n":                   "line 2: a quoted field has no closing quote, or more text",
		"ok,alice,1\n\"geheim,bob,2\ngeheim,carl,3\n":       "line 2: a quoted field has no closing quote",
		"ok,alice,1\n\"geheim,bob,2\ngeheim\",carl,3\nx,y,": "line 2: a field goes on in the next line",
	} {
		_, err := parse([]byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "geheim") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if lines, err := parse(nil); err != nil || len(lines) != 0 {
		t.Errorf("nothing: %v, %v", lines, err)
	}
}

// FuzzParse: what is accepted can log in, one user per line.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"secret,alice,1,\"team,ops\"\n", "\"a\"\"b\",c,d\r\n", "a,b,c\na,b,c", "\ufeff,,", "\"", "a,b,c,\n\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		lines, err := parse(text)
		if err != nil && (!strings.HasPrefix(err.Error(), "line ") || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q: %v", text, err)
		}
		if len(lines) > bytes.Count(text, []byte("\n"))+1 {
			t.Errorf("%q: %d users", text, len(lines))
		}
		for _, l := range lines {
			if l.password == "" || l.user.Name == "" || strings.ContainsAny(l.user.Name, ":\n") {
				t.Errorf("%q: %+v", text, l)
			}
		}
	})
}

func TestWhoMayRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "users.csv")
	write(t, path, "secret,alice,1\n")
	for mode, says := range map[os.FileMode]string{
		0o600: "", 0o400: "", 0o640: "chmod 600 " + path, 0o604: "(mode 0604)", 0o620: "chmod 600", 0o601: "chmod 600",
	} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%o: %v", mode, err)
		}
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		if err := private(path, info, os.Geteuid()+1); err == nil || !strings.Contains(err.Error(), "belongs to user") {
			t.Errorf("of another user: %v", err)
		}
	} else if err := os.Chown(path, 4711, -1); err != nil {
		t.Fatal(err)
	} else if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "belongs to user 4711") {
		t.Errorf("of another user: %v", err)
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a directory: %v", err)
	}
	if _, err := Open(filepath.Join(dir, "none")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("no file: %v", err)
	}
	large := filepath.Join(dir, "large")
	write(t, large, strings.Repeat("\n", maxSize+1))
	if _, err := Open(large); err == nil || !strings.Contains(err.Error(), "larger than 1 MiB") {
		t.Errorf("a large file: %v", err)
	}
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newLog() (*lines, logrus.FieldLogger) {
	out, log := &lines{}, logrus.New()
	log.SetOutput(out)
	return out, log
}

func TestReload(t *testing.T) {
	f := open(t, "secret,alice,1\n")
	out, log := newLog()
	for _, step := range []struct {
		text     string // "": only mode
		mode     os.FileMode
		password string // of alice, afterwards
		says     string // in the log; "": nothing
	}{
		{"secret,alice,1\n", 0o600, "secret", ""},
		{"other,alice,1\n", 0o600, "other", "again: 1 users"},
		{"third,alice,1\nbroken\n", 0o600, "other", "line 2: it has 1 of the fields"},
		{"third,alice,1\nbroken\n", 0o600, "other", ""}, // once
		{"third,alice,1\n", 0o644, "other", "chmod 600"},
		{"", 0o600, "third", "again: 1 users"},
		{"fourth,alice,1\nroot,bob,2,system:masters\n", 0o600, "fourth", "system:masters, whose rights RBAC cannot take away: bob"},
		{"\n", 0o600, "", "again: 0 users"},
	} {
		if step.text != "" {
			write(t, f.path, step.text)
		}
		if err := os.Chmod(f.path, step.mode); err != nil {
			t.Fatal(err)
		}
		before := len(out.String())
		f.reload(log)
		if said := out.String()[before:]; (said == "") != (step.says == "") || !strings.Contains(said, step.says) || strings.Contains(said, "third") {
			t.Errorf("%+v: the log says %q", step, said)
		}
		if got := login(f, "alice", step.password); step.password != "" && got != "alice 1 []" {
			t.Errorf("%+v: %s", step, got)
		}
		if got := login(f, "alice", "secret"); step.password != "secret" && got != wrong {
			t.Errorf("%+v: %s with the first password", step, got)
		}
	}
	if err := os.Remove(f.path); err != nil {
		t.Fatal(err)
	}
	f.reload(log)
	if !strings.Contains(out.String(), "no such file or directory; its previous passwords still apply") {
		t.Error(out.String())
	}
}

// TestFollow: changes in place, by rename, and by a link that is replaced, as in a volume of Kubernetes.
func TestFollow(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, version := range []string{"1", "2"} {
		must(os.Mkdir(filepath.Join(dir, version), 0o700))
		write(t, filepath.Join(dir, version, "users.csv"), "linked"+version+",alice,1\n")
	}
	must(os.Symlink("1", filepath.Join(dir, "..data")))
	must(os.Symlink("..data/users.csv", filepath.Join(dir, "users.csv")))
	f, err := Open(filepath.Join(dir, "users.csv"))
	must(err)
	f.poll = time.Hour // the watch must notice
	ignore := goleak.IgnoreCurrent()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	out, log := newLog()
	go func() { defer close(ended); f.Follow(ctx, log) }()
	defer func() {
		stop()
		<-ended
		goleak.VerifyNone(t, ignore)
	}()
	becomes := func(password string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); login(f, "alice", password) != "alice 1 []"; time.Sleep(20 * time.Millisecond) {
			f.guesses.forget()
			if time.Now().After(end) {
				t.Fatalf("%q is not the password; the log: %s", password, out)
			}
		}
	}
	becomes("linked1")
	must(os.Symlink("2", filepath.Join(dir, "..new")))
	must(os.Rename(filepath.Join(dir, "..new"), filepath.Join(dir, "..data")))
	becomes("linked2")
	write(t, filepath.Join(dir, "2", "users.csv"), "inplace,alice,1\n")
	becomes("inplace")
	write(t, filepath.Join(elsewhere, "real"), "elsewhere,alice,1\n")
	must(os.Symlink(filepath.Join(elsewhere, "real"), filepath.Join(dir, "..new")))
	must(os.Rename(filepath.Join(dir, "..new"), filepath.Join(dir, "users.csv")))
	becomes("elsewhere")
	write(t, filepath.Join(elsewhere, "new"), "renamed,alice,1\n")
	must(os.Rename(filepath.Join(elsewhere, "new"), filepath.Join(elsewhere, "real")))
	becomes("renamed")
	if !strings.Contains(out.String(), "1 users of "+f.path+" log in with a password") {
		t.Errorf("no warning at the start: %s", out)
	}
}

// forget forgets the test's own attempts.
func (g *guesses) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.wrong)
}
