package certificates

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus/hooks/test"
)

// TestRun: the certificates are checked periodically, also after a failure.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, lines := test.NewNullLogger()
		looks := 0
		s := New(Options{Log: log, Renew: func() ([]string, error) {
			looks++
			switch looks {
			case 1:
				return nil, errors.New("disk full")
			case 2:
				return []string{"apiserver.crt"}, nil
			}
			return nil, nil
		}})
		ctx, cancel := context.WithTimeout(t.Context(), 45*time.Minute)
		defer cancel()
		isReady := false
		if err := s.Run(ctx, func() { isReady = looks == 0 }); err != nil {
			t.Error(err)
		}
		if !isReady || looks != 4 {
			t.Errorf("ready at once: %v; %d checks", isReady, looks)
		}
		var got []string
		for _, e := range lines.AllEntries() {
			got = append(got, e.Level.String()+" "+e.Message)
		}
		if want := []string{"error cannot renew the certificates, retrying in 10m0s: disk full", "info renewed apiserver.crt"}; !slices.Equal(got, want) {
			t.Errorf("logged %q, want %q", got, want)
		}
	})
}
