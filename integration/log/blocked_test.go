package log

import (
	"bufio"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestBlocked: no process reads the log while a server starts and works. It answers all the same, logs later how many
// lines were lost, goes on when the reader is gone, and stops cleanly.
func TestBlocked(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{NoTestImage: true})
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	// A pipe of one page is full at once.
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4096); err != nil {
		t.Fatal(err)
	}
	cmd := s.BinaryCommand("server", "--log-level=trace", "--disable=kubelet,containerd,proxy,dns")
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { cmd.Process.Kill() })

	harness.Eventually(t, 60*time.Second, "the API of a server whose log is not read", func() error {
		select {
		case err := <-ended:
			return harness.Permanent(errors.Join(errors.New("the server has ended"), err))
		default:
		}
		if _, err := os.Stat(s.Path(harness.AdminKubeconfig)); err != nil {
			return err
		}
		_, err := s.Client(t).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	write := func(n int) {
		t.Helper()
		for i := range n {
			began := time.Now()
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}}
			if _, err := s.Client(t).CoreV1().ConfigMaps("default").Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > harness.Patience(3*time.Second) {
				t.Errorf("write %d took %s", i, took)
			}
		}
	}
	write(50)

	told, read := make(chan string, 1), bufio.NewScanner(io.LimitReader(r, 64<<20))
	read.Buffer(nil, 1<<20)
	go func() {
		defer close(told)
		for read.Scan() {
			if strings.Contains(read.Text(), "lines of the log were lost") {
				told <- read.Text()
				return
			}
		}
	}()
	write(5) // lines that come after those that are lost
	select {
	case line := <-told:
		if !regexp.MustCompile(`warn +component=kubelith \d+ lines of the log were lost: the reader is too slow$`).MatchString(line) {
			t.Errorf("it logged %q", line)
		}
	case <-time.After(harness.Patience(20 * time.Second)):
		t.Error("lost lines are not logged")
	}

	r.Close() // the reader dies
	write(20)
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the stop: %v", err)
		}
	case <-time.After(harness.Patience(30 * time.Second)):
		t.Fatal("it does not stop")
	}
}

// TestLogFile: the file is for root alone, is appended to, and keeps its size, also what is written to standard error.
func TestLogFile(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{NoTestImage: true})
	const name = "/var/log/kubelith.log"
	// As OpenRC does it: standard error is the same file. It is nearly full.
	old := strings.Repeat(strings.Repeat("x", 1023)+"\n", 10<<10-20)
	if err := os.WriteFile(s.Path(name), []byte(old), 0o644); err != nil {
		t.Fatal(err)
	}
	stderr, err := os.OpenFile(s.Path(name), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	cmd := s.BinaryCommand("server", "--log-file="+name, "--disable=kubelet,containerd,proxy,dns")
	cmd.Stdout, cmd.Stderr = stderr, stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	harness.Eventually(t, 60*time.Second, "a second file", func() error {
		_, err := os.Stat(s.Path(name + ".1"))
		return err
	})
	s.WaitAPI(t)
	cmd.Process.Signal(unix.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("the stop: %v", err)
	}
	// A refusal is the last line of the file.
	cmd = s.BinaryCommand("server", "--log-file="+name, "--etcd-arg=no-such=1")
	if stderr, err = os.OpenFile(s.Path(name), os.O_APPEND|os.O_WRONLY, 0); err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	cmd.Stderr = stderr
	if cmd.Run() == nil {
		t.Error("it was not refused")
	}
	whole := ""
	for _, file := range []string{name + ".1", name} {
		info, err := os.Stat(s.Path(file))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 || info.Size() > 10<<20 {
			t.Errorf("%s has mode %v and %d bytes", file, info.Mode(), info.Size())
		}
		text, err := os.ReadFile(s.Path(file))
		if err != nil {
			t.Fatal(err)
		}
		whole += string(text)
	}
	if !strings.HasPrefix(whole, old) {
		t.Error("what was in the file is lost")
	}
	lines := strings.Split(strings.TrimSpace(whole[len(old):]), "\n")
	for _, line := range lines[:len(lines)-1] {
		if level(line) == "" {
			t.Errorf("not a line of the log: %q", line)
		}
	}
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "kubelith: ") || !strings.Contains(last, "no-such") {
		t.Errorf("the last line is %q", last)
	}
}
