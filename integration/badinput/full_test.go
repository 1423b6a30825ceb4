package badinput

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/integration/harness"
)

// TestDiskFills fills the disk of a running server. The server stops in order with one line that says what to do. Its
// next start has everything that it acknowledged, and the user need not free space first: the API is there to do it.
func TestDiskFills(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{NoTestImage: true})
	const dir = "/var/lib/filling"
	mount(t, s, dir, "size=700m")

	var stderr bytes.Buffer
	cmd := s.BinaryCommand("server", controlPlane, "--data-dir="+dir)
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer cmd.Process.Kill()
	ready(t, s, ended)

	written := []string{"before-1", "before-2", "before-3"} // one to delete at each of the starts
	for _, name := range written {
		if err := writeLarge(t, s.Client(t), name); err != nil {
			t.Fatal(err)
		}
	}
	harness.Eventually(t, 10*time.Second, "space to be kept", func() error {
		_, err := os.Stat(filepath.Join(s.Path(dir), "ballast"))
		return err
	})
	filler := filepath.Join(s.Path(dir), "filler")
	fill(t, filler)
	written = append(written, writeUntilRefused(t, s.Client(t))...)
	var err error
	select {
	case err = <-ended:
	case <-time.After(harness.Patience(60 * time.Second)):
		t.Fatalf("still running on a full disk; stderr ends with:\n%s", tail(stderr.String()))
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("ended with %v, want exit code 1", err)
	}
	lines := strings.Split(strings.TrimRight(stderr.String(), "\n"), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, "kubelith: etcd: ") || strings.Count(stderr.String(), "\nkubelith: ") != 1 || strings.Contains(stderr.String(), "goroutine ") {
		t.Errorf("stderr must end with one line of etcd's:\n%s", tail(stderr.String()))
	}
	contains(t, last, dir, "disk full", "free space")
	t.Log(last)

	for _, when := range []string{"on the full disk", "again on the full disk", "with room again"} {
		if when == "with room again" {
			if err := os.Remove(filler); err != nil {
				t.Fatal(err)
			}
		}
		var log bytes.Buffer
		again := s.BinaryCommand("server", controlPlane, "--data-dir="+dir)
		again.Stderr = &log
		if err := again.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- again.Wait() }()
		defer again.Process.Kill()
		ready(t, s, ended)
		for _, name := range written {
			if _, err := s.Client(t).CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{}); err != nil {
				t.Errorf("%s: %s was acknowledged: %v", when, name, err)
			}
		}
		last := written[len(written)-1]
		if err := s.Client(t).CoreV1().ConfigMaps("default").Delete(t.Context(), last, metav1.DeleteOptions{}); err != nil {
			t.Errorf("%s: delete something: %v", when, err)
		}
		written = written[:len(written)-1]
		again.Process.Signal(os.Interrupt)
		if err := <-ended; err != nil {
			t.Errorf("%s: stop: %v\n%s", when, err, tail(log.String()))
		}
		if warned := strings.Contains(log.String(), "MiB free: free at least"); warned != (when != "with room again") {
			t.Errorf("%s: warned of the full disk: %v", when, warned)
		}
	}
}

// ready waits for the API of a server.
func ready(t *testing.T, s *harness.Server, ended <-chan error) {
	t.Helper()
	harness.Eventually(t, 60*time.Second, "the API", func() error {
		select {
		case err := <-ended:
			t.Fatalf("the server ended: %v", err)
		default:
		}
		if _, err := os.Stat(s.Path(harness.AdminKubeconfig)); err != nil {
			return err
		}
		_, err := s.Client(t).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
}

// fill takes all the space that is left.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	if _, err := io.Copy(f, zero); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Fatalf("fill the disk: %v", err)
	}
}

// writeLarge creates a ConfigMap of half a megabyte.
func writeLarge(t *testing.T, cs kubernetes.Interface, name string) error {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := cs.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"x": strings.Repeat("x", 500_000)}}, metav1.CreateOptions{})
	return err
}

// writeUntilRefused creates large ConfigMaps until one is not acknowledged, and returns the names of the others.
func writeUntilRefused(t *testing.T, cs kubernetes.Interface) (written []string) {
	t.Helper()
	const many = 400 // of 500 kB: more than etcd has reserved
	for i := range many {
		name := fmt.Sprintf("large-%d", i)
		if err := writeLarge(t, cs, name); err != nil {
			t.Logf("%d written, then: %v", i, err)
			return written
		}
		written = append(written, name)
	}
	t.Fatalf("%d large objects fit on a full disk", many)
	return nil
}
