package proxy

import (
	"testing"
	"time"

	"k8s.io/kubernetes/pkg/proxy/nftables"
	"k8s.io/kubernetes/pkg/proxy/runner"
)

// TestStopDuringAnEvent: a loop does not end while an event is handed on, which asks it to write.
func TestStopDuringAnEvent(t *testing.T) {
	a := &families{each: []*family{{runner: runner.NewBoundedFrequencyRunner("test", func() error { return nil }, 0, time.Hour, time.Hour)}}}
	a.synced[0].Store(true)
	a.synced[1].Store(true)
	a.loop()
	came, goOn, handedOn, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(handedOn)
		a.do(func(*nftables.Proxier) {
			close(came)
			<-goOn
		})
	}()
	<-came
	go func() {
		defer close(stopped)
		a.stop()
	}()
	select {
	case <-stopped:
		t.Error("the loops have ended")
	case <-time.After(50 * time.Millisecond):
	}
	close(goOn)
	<-handedOn
	<-stopped
	a.do(func(*nftables.Proxier) { t.Error("an event after the end") })
}
