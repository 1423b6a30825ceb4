package crashes

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"kubelith.io/kubelith/base/lifecycle"
)

// A panic that is not recovered ends the process, and the service manager starts it again. When the same component
// crashes the process repeatedly, the next start leaves that component out for a while: the API runs, so that an
// operator can remove the cause.
const (
	crashFile   = "crash"   // in the run directory: what the runtime wrote about the panic that ended the process
	crashesFile = "crashes" // one line per crash: seconds, component, first line

	crashesTaken = 2                // so many in a row are ignored
	crashesApart = 10 * time.Minute // crashes further apart are not in a row
	firstHold    = 10 * time.Minute // doubles with each further crash, up to
	longestHold  = 6 * time.Hour

	maxCrash, maxText, maxCrashes = 64 << 10, 300, 100
)

// crash is one end of the process.
type crash struct {
	at        time.Time
	component string
	text      string
}

// BreakLoops records why the previous process ended, has crashes of this one recorded, and returns the components to
// leave out, for lifecycle.Options.Held: the Group leaves out only those that may be restarted. first is how long a
// component is left out the first time; 0: ten minutes. previous is what the runtime wrote about the panic that ended
// the previous process, to be logged: this process writes its own there. Empty: no panic ended it.
//
// The runtime has one file for that beside standard error (debug.SetCrashOutput); nothing else in the process sets it.
func BreakLoops(runDir string, first time.Duration) (out map[string]lifecycle.Hold, previous string, err error) {
	path, list := filepath.Join(runDir, crashFile), filepath.Join(runDir, crashesFile)
	crashes := readCrashes(list)
	previous, at := readPanic(path)
	if last, ok := crashOf(previous, at); ok {
		crashes = append(crashes, last)
		if err := writeCrashes(list, crashes[max(0, len(crashes)-maxCrashes):]); err != nil {
			return nil, previous, err
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, previous, err
	}
	defer f.Close() // the runtime has its own
	// The traceback names the component of the goroutine. The runtime reads this from the environment only.
	if err := os.Setenv("GODEBUG", strings.TrimPrefix(os.Getenv("GODEBUG")+",tracebacklabels=1", ",")); err != nil {
		return nil, previous, err
	}
	return held(crashes, time.Now(), cmp.Or(first, firstHold)), previous, debug.SetCrashOutput(f, debug.CrashOptions{})
}

// held returns the components to leave out after these crashes.
func held(crashes []crash, now time.Time, first time.Duration) map[string]lifecycle.Hold {
	type row struct {
		n     int
		until time.Time // the last one, or the end of the hold after it
	}
	rows, out := map[string]row{}, map[string]lifecycle.Hold{}
	for _, c := range crashes {
		if c.at.After(now) { // the clock was set back
			continue
		}
		r := rows[c.component]
		if c.at.Sub(r.until) > crashesApart {
			r.n = 0
		}
		r.n++
		r.until = c.at
		delete(out, c.component)
		if r.n > crashesTaken {
			r.until = c.at.Add(min(first<<min(r.n-crashesTaken-1, 20), longestHold))
			out[c.component] = lifecycle.Hold{Until: r.until,
				Why: fmt.Errorf("has crashed the process %d times in a row, the last time with %q", r.n, c.text)}
		}
		rows[c.component] = r
	}
	for name, hold := range out {
		if !now.Before(hold.Until) {
			delete(out, name)
		}
	}
	return out
}

// crashed matches the component of the goroutine that ended the process, by its label (lifecycle.Label).
var crashed = regexp.MustCompile(`^goroutine \d+ .*labels:\{.*"` + lifecycle.Label + `": "([a-z-]+)"`)

// readPanic returns what the runtime wrote about the panic that ended the previous process, and when.
func readPanic(path string) (text string, at time.Time) {
	f, err := os.Open(path)
	if err != nil {
		return "", at
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", at
	}
	data, _ := io.ReadAll(io.LimitReader(f, maxCrash)) // what can be read is more than nothing
	return strings.TrimSpace(string(data)), info.ModTime()
}

// crashOf returns false unless the panic was in a component.
func crashOf(text string, at time.Time) (crash, bool) {
	first, _, _ := strings.Cut(text, "\n")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "goroutine ") { // the first one panicked
			if found := crashed.FindStringSubmatch(line); found != nil {
				return crash{at, found[1], first[:min(len(first), maxText)]}, true
			}
			break
		}
	}
	return crash{}, false
}

// readCrashes skips lines that it does not understand.
func readCrashes(path string) (out []crash) {
	data, _ := os.ReadFile(path)
	for line := range strings.Lines(string(data)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
		if len(fields) < 3 {
			continue
		}
		if seconds, err := strconv.ParseInt(fields[0], 10, 64); err == nil {
			out = append(out, crash{time.Unix(seconds, 0), fields[1], fields[2]})
		}
	}
	return out
}

func writeCrashes(path string, crashes []crash) error {
	var text strings.Builder
	for _, c := range crashes {
		fmt.Fprintf(&text, "%d %s %s\n", c.at.Unix(), c.component, c.text)
	}
	return os.WriteFile(path, []byte(text.String()), 0o600)
}
