package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/cap"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/process"
)

// privilegesOf reads /proc/PID/status.
func privilegesOf(t *testing.T, pid int) (capabilities map[cap.Type]uint64, noNewPrivs bool) {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	capabilities, err = cap.ParseProcPIDStatus(strings.NewReader(string(content)))
	if err != nil {
		t.Fatal(err)
	}
	return capabilities, strings.Contains(string(content), "\nNoNewPrivs:\t1\n")
}

// A plugin has the capabilities that its settings name, or those of its kind, and no way to others.
func TestPrivileges(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has capabilities to give up")
	}
	auto, user := int64(AutoUID), int64(61999)
	const sysAdmin, bindService = 1 << unix.CAP_SYS_ADMIN, 1 << unix.CAP_NET_BIND_SERVICE
	for name, tc := range map[string]struct {
		kind   plugins.Kind
		limits process.Limits
		bound  uint64 // that it may have
		has    uint64 // has
	}{
		"root":       {plugins.Admission, process.Limits{}, 0, 0},
		"declared":   {plugins.Admission, process.Limits{Capabilities: []string{"NET_BIND_SERVICE"}}, bindService, bindService},
		"user":       {plugins.Admission, process.Limits{UID: &user}, 0, 0},
		"auto":       {plugins.Admission, process.Limits{UID: &auto, Capabilities: []string{"NET_BIND_SERVICE"}}, bindService, bindService},
		"storage":    {plugins.Storage, process.Limits{Capabilities: []string{"SYS_ADMIN"}}, sysAdmin, sysAdmin},
		"explicitly": {plugins.Storage, process.Limits{Capabilities: []string{}}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := admissionSpec(t, name, "serve")
			if tc.kind == plugins.Storage {
				spec = admissionSpec(t, name, "storage")
				spec.Kind = plugins.Storage
			}
			spec.Limits = tc.limits
			spec.Path = filepath.Join(t.TempDir(), "p")
			install(t, spec.Path, "1")
			h := startHost(t, spec)
			got, noNewPrivs := privilegesOf(t, h.ready(name).PID)
			if !noNewPrivs {
				t.Error("it may gain privileges by executing a program")
			}
			if got[cap.Bounding] != tc.bound || got[cap.Effective] != tc.has || got[cap.Permitted] != tc.has || got[cap.Inheritable]&^tc.has != 0 {
				t.Errorf("capabilities %x, want bounding %x, effective %x", got, tc.bound, tc.has)
			}
		})
	}
	// We have lost nothing.
	if own, noNewPrivs := privilegesOf(t, os.Getpid()); noNewPrivs || own[cap.Bounding]&sysAdmin == 0 {
		t.Errorf("the host itself has now the capabilities %x, no_new_privs %v", own, noNewPrivs)
	}
}

// A plugin with its own user cannot touch what root keeps writing for it, nor read what another plugin has.
func TestCredentialsOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may start a process as another user")
	}
	auto := int64(AutoUID)
	first, second := admissionSpec(t, "first", "serve"), admissionSpec(t, "second", "serve")
	first.Limits.UID, second.Limits.UID = &auto, &auto
	for _, s := range []*Spec{&first, &second} {
		s.Path = filepath.Join(t.TempDir(), "p")
		install(t, s.Path, "1")
	}
	h := &testHost{t: t, log: &logLines{}, events: newEvents(), dir: t.TempDir()}
	h.credentials = func(spec *process.Spec, dir, seen string) ([]string, error) {
		user := filepath.Join(dir, "user")
		if err := os.Mkdir(user, 0o750); err != nil {
			return nil, err
		}
		key := filepath.Join(user, "client.key")
		if err := os.WriteFile(key, []byte("the key of "+spec.Name), 0o640); err != nil {
			return nil, err
		}
		for _, path := range []string{user, key} {
			if err := os.Chown(path, -1, *spec.Limits.Group()); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	h.start(first, second)
	victim, pid := h.ready("first").PID, h.ready("second").PID
	a, b := strings.Fields(h.mustReview("first", "self")), strings.Fields(h.mustReview("second", "self"))
	if a[1] == b[1] || a[1] == "0" || b[1] == "0" {
		t.Errorf("the users of the two are %s and %s", a[1], b[1])
	}
	if got := h.mustReview("second", "read /proc/self/fd/4/user/client.key"); got != "the key of second" {
		t.Errorf("its own key: %s", got)
	}
	if got := h.mustReview("second", "read /proc/"+strconv.Itoa(victim)+"/fd/4/user/client.key"); !strings.Contains(got, "permission denied") {
		t.Errorf("the key of another: %s", got)
	}
	if done := h.mustReview("second", "attack /etc"); done != "" {
		t.Errorf("these attacks succeeded: %s", done)
	}
	// It is there as before, also for us.
	if got, err := os.ReadFile(fmt.Sprintf("/proc/%d/fd/4/user/client.key", pid)); string(got) != "the key of second" {
		t.Errorf("%q, %v", got, err)
	}
}
