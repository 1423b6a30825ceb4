package logging

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
)

var lostLines = regexp.MustCompile(`warn  component=kubelith (\d+) lines of the log were lost: (.+)`)

// TestNobodyReads: an unread pipe blocks no writer, and every line is either read later or counted.
func TestNobodyReads(t *testing.T) {
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w := NewWriter(out, "text")
	log := logrus.New()
	log.SetOutput(w)
	log.SetFormatter(text{})
	const lines = 20000
	began := time.Now()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range lines / 4 {
				log.Info(strings.Repeat("x", 100))
			}
		})
	}
	all.Wait()
	if took := time.Since(began); took > time.Minute {
		t.Fatalf("%d lines took %s", lines, took)
	}
	began = time.Now()
	w.Flush()
	if took := time.Since(began); took < flushLimit || took > flushLimit+5*time.Second {
		t.Errorf("Flush took %s", took)
	}

	read := make(chan int)
	go func() {
		n, lost := 0, 0
		for in := bufio.NewScanner(r); in.Scan(); {
			if m := lostLines.FindStringSubmatch(in.Text()); m != nil {
				more, _ := strconv.Atoi(m[1])
				lost += more
				if m[2] != "the reader is too slow" {
					t.Errorf("the reason is %q", m[2])
				}
			} else if n++; !strings.HasSuffix(in.Text(), "xxx") && !strings.HasSuffix(in.Text(), " last") {
				t.Errorf("a broken line: %q", in.Text())
			}
		}
		if lost == 0 {
			t.Error("lost lines are not reported")
		}
		read <- n + lost
	}()
	log.Info("last") // may be lost too
	w.Close()
	<-w.done
	out.Close()
	if got := <-read; got != lines+1 {
		t.Errorf("%d lines were read or counted, %d were written", got, lines+1)
	}
}

// failing is an output whose disk is full for a while.
type failing struct {
	mu   sync.Mutex
	full bool
	got  bytes.Buffer
}

func (f *failing) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full {
		return 0, syscall.ENOSPC
	}
	return f.got.Write(p)
}

func (f *failing) set(full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.full = full
}

func TestOutputFails(t *testing.T) {
	out := &failing{}
	w := NewWriter(out, "text")
	for i, full := range []bool{false, true, true, false} {
		out.set(full)
		if n, err := fmt.Fprintf(w, "line %d\n", i); n != 7 || err != nil {
			t.Errorf("Write returned %d, %v", n, err)
		}
	}
	w.Close()
	<-w.done
	got := strings.Split(strings.TrimSpace(out.got.String()), "\n")
	if len(got) != 3 || got[0] != "line 0" || got[1] != "line 3" {
		t.Fatalf("got %q", got)
	}
	if m := lostLines.FindStringSubmatch(got[2]); m == nil || m[1] != "2" || m[2] != syscall.ENOSPC.Error() {
		t.Errorf("got %q", got[2])
	}
	if n, err := fmt.Fprintln(w, "late"); n != 5 || err != nil || strings.Contains(out.got.String(), "late") {
		t.Errorf("after Close: %d, %v, %q", n, err, out.got.String())
	}
	w.Close() // a second time
}

// A line is written when Write returns: the process may end then.
func TestWrittenWhenItReturns(t *testing.T) {
	out := &failing{}
	w := NewWriter(out, "json")
	defer w.Close()
	for i := range 100 {
		fmt.Fprintf(w, "%d\n", i)
		out.mu.Lock()
		if !strings.HasSuffix(out.got.String(), fmt.Sprintf("%d\n", i)) {
			t.Fatalf("line %d is not there: %q", i, out.got.String())
		}
		out.mu.Unlock()
	}
}

func TestLostLineInJSON(t *testing.T) {
	line := string(lostLine(json{}, 3, errors.New("no")))
	if !strings.Contains(line, `"msg":"3 lines of the log were lost: no"`) || !strings.Contains(line, `"level":"warn"`) || !strings.HasSuffix(line, "}\n") {
		t.Error(line)
	}
}
