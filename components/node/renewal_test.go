package node

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
)

func TestRenewCertificates(t *testing.T) {
	log, lines := test.NewNullLogger()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	calls := make(chan int, 1)
	n := 0
	renewCertificates(ctx, time.Millisecond, func() ([]string, error) {
		n++
		select {
		case calls <- n:
		case <-ctx.Done():
		}
		switch n {
		case 1:
			return nil, errors.New("disk full")
		case 2:
			return []string{"apiserver.crt"}, nil
		}
		return nil, nil
	}, log)
	for want := 1; want <= 4; want++ {
		if got := <-calls; got != want {
			t.Fatalf("call %d, want %d", got, want)
		}
	}
	var got []string
	for _, e := range lines.AllEntries() {
		got = append(got, e.Level.String()+" "+e.Message)
	}
	if want := []string{logrus.ErrorLevel.String() + " certificates are not renewed, next try in 1ms: disk full", "info renewed apiserver.crt"}; !slices.Equal(got, want) {
		t.Errorf("logged %q, want %q", got, want)
	}
}
