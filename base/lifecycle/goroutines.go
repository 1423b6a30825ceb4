package lifecycle

import "sync"

// Goroutines are those of a component that others start: hooks and handlers, which may come while Run ends. The zero
// value is ready for use.
type Goroutines struct {
	mu      sync.Mutex
	ended   bool
	running sync.WaitGroup
}

// Begin reports whether one more may run, whose caller calls Done after it.
func (g *Goroutines) Begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ended {
		g.running.Add(1)
	}
	return !g.ended
}

// Done ends what Begin has begun.
func (g *Goroutines) Done() { g.running.Done() }

// Go runs f in a goroutine, and after End not at all.
func (g *Goroutines) Go(f func()) {
	if g.Begin() {
		go func() {
			defer g.Done()
			f()
		}()
	}
}

// End waits for all of them, and lets no other begin.
func (g *Goroutines) End() {
	g.mu.Lock()
	g.ended = true
	g.mu.Unlock()
	g.running.Wait()
}
