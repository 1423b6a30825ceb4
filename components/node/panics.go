package node

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

	"kubelith.io/kubelith/components/lifecycle"
)

// panics ends components for what their goroutines meet. Upstream's loops, informer handlers and workers, and goroutines of ours, have
// HandleCrash, which logs a panic, tells PanicHandlers and panics again: the process would end, and etcd with it. For a component
// that can be started again the handler ends the goroutine instead, with its deferred calls, and the component with it.
// utilruntime.ReallyCrash stays: without it the goroutine would go on in a state that nobody knows, and broken answers of the API
// would look whole.
//
// A goroutine without HandleCrash still ends the process; see crashes.go.
type panics struct {
	fail func(component string, err error) bool

	mu sync.Mutex // one goroutine at a time looks who it is
}

// catchPanics is called once, before a component runs.
func catchPanics(fail func(component string, err error) bool) *panics {
	p := &panics{fail: fail}
	utilruntime.PanicHandlers = append(utilruntime.PanicHandlers, p.handle)
	return p
}

// handle is called by the goroutine that has panicked. It returns when the panic is to go on.
func (p *panics) handle(_ context.Context, value any) {
	if value == http.ErrAbortHandler {
		return // that is how a handler breaks off an answer
	}
	if p.fail(p.component(), fmt.Errorf("panic: %v", value)) {
		runtime.Goexit()
	}
}

// component is that which has started this goroutine, or empty. A goroutine's labels can only be read in a profile of all of them.
func (p *panics) component() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.profiled()
}

// profiled looks for the one goroutine that is in this function.
func (p *panics) profiled() string {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return ""
	}
	for record := range strings.SplitSeq(profile.String(), "\n\n") {
		if !strings.Contains(record, "node.(*panics).profiled") {
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
