package crashes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"kubelith.io/kubelith/base/lifecycle"
)

// Panics ends components whose goroutines panic. Upstream's loops, informer handlers and workers, and our goroutines,
// have HandleCrash, which logs a panic, calls PanicHandlers and panics again: the process would end, and etcd with it.
// For a component that can be restarted the handler instead ends the goroutine, with its deferred calls, and the
// component with it. utilruntime.ReallyCrash stays: without it the goroutine would go on in an unknown state, and
// broken answers of the API would look complete.
//
// A goroutine without HandleCrash still ends the process; see BreakLoops.
type Panics struct {
	fail func(component string, err error) bool

	mu sync.Mutex // one goroutine at a time finds out which one it is
}

// CatchPanics is called once, before a component runs. fail is lifecycle.Group.Fail.
func CatchPanics(fail func(component string, err error) bool) *Panics {
	p := &Panics{fail: fail}
	utilruntime.PanicHandlers = append(utilruntime.PanicHandlers, p.handle)
	return p
}

// handle is called by the goroutine that panicked. It returns when the panic is to go on.
func (p *Panics) handle(_ context.Context, value any) {
	if value == http.ErrAbortHandler {
		return // a handler aborts a response this way
	}
	if p.fail(p.component(), fmt.Errorf("panic: %v", value)) {
		runtime.Goexit()
	}
}

// component returns the component that started this goroutine, or "". A goroutine's labels can only be read in a
// profile of all goroutines.
func (p *Panics) component() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.profiled()
}

// profiled finds the one goroutine that is in this function.
func (p *Panics) profiled() string {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return ""
	}
	for record := range strings.SplitSeq(profile.String(), "\n\n") {
		if !strings.Contains(record, "crashes.(*Panics).profiled") {
			continue
		}
		for line := range strings.Lines(record) {
			var labels map[string]string
			if text, ok := strings.CutPrefix(line, "# labels: "); ok && json.Unmarshal([]byte(text), &labels) == nil {
				return labels[lifecycle.Label]
			}
		}
	}
	return ""
}
