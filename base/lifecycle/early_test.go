package lifecycle

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// early is a fake that starts before all that it needs is ready.
type early struct {
	fake
	after []string
}

func (e early) StartsAfter() []string { return e.after }

// TestEarly: it starts beside what it needs, waits for that, and stops before it.
func TestEarly(t *testing.T) {
	begun := make(chan struct{})
	apiserver := fake{name: "apiserver", run: func(ctx context.Context, ready func()) error {
		select {
		case <-begun:
		case <-ctx.Done():
			return errors.New("kubelet has not started before the apiserver was ready")
		}
		time.Sleep(50 * time.Millisecond)
		ready()
		<-ctx.Done()
		return nil
	}}
	kubelet := early{fake{name: "kubelet", needs: []string{"apiserver", "containerd"}, run: func(ctx context.Context, ready func()) error {
		close(begun)
		if err := AwaitNeeds(ctx); err != nil {
			return err
		}
		ready()
		if err := AwaitNeeds(ctx); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}}, []string{"containerd"}}
	rec, err := runGroup(t, Options{}, "kubelet ready", kubelet, apiserver, fake{name: "containerd"})
	if err != nil {
		t.Fatal(err)
	}
	for _, order := range [][2]int{
		{rec.index("containerd", Ready), rec.index("kubelet", Starting)},
		{rec.index("kubelet", Starting), rec.index("apiserver", Ready)},
		{rec.index("apiserver", Ready), rec.index("kubelet", Ready)},
		{rec.index("kubelet", Stopped), rec.index("apiserver", Stopping)},
	} {
		if order[0] < 0 || order[0] > order[1] {
			t.Errorf("out of order: %v", rec.events)
		}
	}
}

// TestEarlyStop: it stops although it waits for what never gets ready.
func TestEarlyStop(t *testing.T) {
	never := fake{name: "apiserver", run: func(ctx context.Context, _ func()) error {
		<-ctx.Done()
		return nil
	}}
	waiting := early{fake{name: "kubelet", needs: []string{"apiserver"}, run: func(ctx context.Context, _ func()) error {
		if err := AwaitNeeds(ctx); !errors.Is(err, context.Canceled) {
			return errors.New("it did not wait")
		}
		return nil
	}}, nil}
	rec, err := runGroup(t, Options{}, "kubelet starting", waiting, never)
	if err != nil || rec.index("kubelet", Stopped) < 0 {
		t.Errorf("%v: %v", err, rec.events)
	}
}

func TestEarlyNeeds(t *testing.T) {
	_, err := NewGroup(Options{}, early{fake{name: "a"}, []string{"b"}}, fake{name: "b"})
	if err == nil || !strings.Contains(err.Error(), `a starts after "b", which it does not need`) {
		t.Errorf("error %v", err)
	}
	if err := AwaitNeeds(t.Context()); err != nil {
		t.Errorf("without a group: %v", err)
	}
}
