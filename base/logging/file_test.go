package logging

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// files returns the content of NAME, NAME.1 and so on.
func files(t *testing.T, name string) []string {
	t.Helper()
	var all []string
	for n := 0; ; n++ {
		file := name
		if n > 0 {
			file = fmt.Sprintf("%s.%d", name, n)
		}
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", file, info.Mode(), err)
		}
		all = append(all, string(text))
	}
}

func TestRotation(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.log")
	if err := os.WriteFile(name, []byte("old\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := openFile(name, 20, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files(t, name) // is for its owner alone now
	for i := range 6 {
		if n, err := fmt.Fprintf(f, "line %d.\n", i); n != 8 || err != nil {
			t.Fatal(n, err)
		}
	}
	fmt.Fprint(f, strings.Repeat("x", 30)) // a line above the maximum size stays whole
	want := []string{strings.Repeat("x", 30), "line 4.\nline 5.\n", "line 2.\nline 3.\n"}
	if got := files(t, name); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNewFileKeepsTheOldOne(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.log")
	for i := range FilesKept + 2 {
		f, err := NewFile(name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(f, i)
		f.Close()
	}
	if got := fmt.Sprint(files(t, name)); got != "[4 3 2 1]" {
		t.Errorf("got %s", got)
	}
	if _, err := NewFile(filepath.Join(name, "x")); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
}

// If a file cannot be rotated, writing goes on.
func TestRotationFails(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.log")
	if err := os.MkdirAll(filepath.Join(name+".1", "not empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := openFile(name, 10, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range 4 {
		if _, err := fmt.Fprintf(f, "line %d\n", i); err != nil {
			t.Fatal(err)
		}
	}
	if text, _ := os.ReadFile(name); string(text) != "line 0\nline 1\nline 2\nline 3\n" {
		t.Errorf("got %q", text)
	}
}

// panicking is set in the process that panics for TestPanic.
const panicking = "KUBELITH_TEST_PANIC"

// TestPanic: a panic of the Go runtime is at the end of the log if standard error is the same file, and else on
// standard error alone: the next start logs it (components/node/crashes).
func TestPanic(t *testing.T) {
	if name := os.Getenv(panicking); name != "" {
		f, err := openFile(name, 10, 2)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(f, "line before")
		fmt.Fprintln(f, "last line")
		go func() { panic("the end") }()
		select {}
	}
	for _, same := range []bool{true, false} {
		name := filepath.Join(t.TempDir(), "a.log")
		stderr := name
		if !same {
			stderr += ".terminal"
		}
		file, err := os.OpenFile(stderr, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestPanic$")
		cmd.Env = append(os.Environ(), panicking+"="+name)
		cmd.Stderr = file
		cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
		if err := cmd.Run(); err == nil {
			t.Error("it did not end with an error")
		}
		file.Close()
		got := files(t, name)
		want := "last line\n"
		if same {
			want += "panic: the end\n"
		}
		if len(got) != 2 || got[1] != "line before\n" || !strings.HasPrefix(got[0], want) || !same && got[0] != want || same && strings.Count(got[0], "panic: the end") != 1 {
			t.Errorf("standard error the same file %v: %q", same, got)
		}
		if text, _ := os.ReadFile(stderr); !same && !strings.HasPrefix(string(text), "panic: the end\n") {
			t.Errorf("on standard error: %q", text)
		}
	}
}
