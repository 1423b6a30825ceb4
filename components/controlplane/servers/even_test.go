package servers

import (
	"testing"
	"time"
)

func TestEven(t *testing.T) {
	var e even
	begin := time.Now()
	for i, tc := range []struct {
		after time.Duration
		votes int
		leads bool
		want  bool
	}{
		{0, 2, true, false},
		{evenAfter - 1, 2, true, false}, // a third one may come
		{evenAfter, 2, false, false},
		{evenAfter + 1, 2, true, true},
		{evenAfter + 2, 2, true, false}, // once
		{evenAfter + 3, 3, true, false},
		{3 * evenAfter, 3, true, false},
		{3*evenAfter + 1, 4, true, false},
		{5 * evenAfter, 4, true, true},
		{5*evenAfter + 1, 2, true, false},
		{7 * evenAfter, 2, true, true}, // again
	} {
		if got := e.watch(tc.votes, tc.leads, begin.Add(tc.after)); got != tc.want {
			t.Errorf("step %d: %t", i, got)
		}
	}
}
