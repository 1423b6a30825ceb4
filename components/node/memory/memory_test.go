package memory

import "testing"

func TestLoadPercent(t *testing.T) {
	const mb = 1 << 20
	for name, c := range map[string]struct {
		memory, live uint64
		rates        []uint64 // allocated in each second
		want         int      // after the last of them
		busy         bool
	}{
		"idle":                            {8000 * mb, 100 * mb, []uint64{3 * mb, 3 * mb}, 50, false},
		"before the first collection":     {8000 * mb, 0, []uint64{0}, 50, false},
		"pods come":                       {8000 * mb, 100 * mb, []uint64{20 * mb}, 200, true},
		"at most the headroom":            {8000 * mb, 100 * mb, []uint64{500 * mb}, 250, true},
		"at most an eighth of the memory": {1000 * mb, 100 * mb, []uint64{500 * mb}, 100, true},
		"less memory than is in use":      {200 * mb, 100 * mb, []uint64{500 * mb}, 50, true},
		"unknown memory":                  {0, 100 * mb, []uint64{500 * mb}, 250, true},
		"a large heap does not double":    {24000 * mb, 700 * mb, []uint64{500 * mb}, 50, true},
		"a second without load":           {8000 * mb, 100 * mb, []uint64{20 * mb, 0}, 150, true},
		"some seconds later":              {8000 * mb, 100 * mb, append([]uint64{100 * mb}, make([]uint64, 10)...), 50, false},
		"a long time of little load":      {8000 * mb, 100 * mb, []uint64{6 * mb, 6 * mb, 6 * mb, 6 * mb, 6 * mb}, 50, false},
	} {
		l := load{memory: c.memory, allocated: 1000 * mb}
		allocated, got, busy := l.allocated, 0, false
		for _, rate := range c.rates {
			allocated += rate
			got, busy = l.percent(allocated, c.live)
		}
		if got != c.want || busy != c.busy {
			t.Errorf("%s: %d %%, busy: %t; want %d, %t", name, got, busy, c.want, c.busy)
		}
	}
}
