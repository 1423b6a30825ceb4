package kernel

import (
	"net/netip"
	"strings"
	"testing"

	"kubelith.io/kubelith/components/worker/policy/rules"
)

func TestParseDrop(t *testing.T) {
	udp := []byte{0x13, 0x88, 0, 53, 0, 8, 0, 0}
	v4 := func(fragment byte) []byte {
		return append([]byte{0x45, 0, 0, 28, 0, 0, 0, fragment, 64, 17, 0, 0, 10, 42, 0, 5, 10, 42, 0, 6}, udp...)
	}
	v6 := make([]byte, 40)
	v6[0], v6[6] = 0x60, 17
	copy(v6[8:], netip.MustParseAddr("fd42::5").AsSlice())
	copy(v6[24:], netip.MustParseAddr("fd42::6").AsSlice())
	a, b := netip.MustParseAddr("10.42.0.5"), netip.MustParseAddr("10.42.0.6")
	for name, tc := range map[string]struct {
		prefix string
		packet []byte
		want   Drop
	}{
		"IPv4":           {"egress-1 original\x00", v4(0), Drop{"egress-1", false, a, b, 17, 5000, 53}},
		"an answer":      {"egress-1 reply\x00", v4(0), Drop{"egress-1", true, a, b, 17, 5000, 53}},
		"a later part":   {"egress-1 original", v4(3), Drop{"egress-1", false, a, b, 17, 0, 0}},
		"cut off":        {"egress-1 original", v4(0)[:22], Drop{"egress-1", false, a, b, 17, 0, 0}},
		"IPv6":           {"closed original", append(v6, udp...), Drop{"closed", false, netip.MustParseAddr("fd42::5"), netip.MustParseAddr("fd42::6"), 17, 5000, 53}},
		"no prefix":      {"", v4(0), Drop{}},
		"a short header": {"x original", v4(0)[:19], Drop{}},
		"nothing":        {"x original", nil, Drop{}},
	} {
		got, ok := parseDrop(tc.prefix, tc.packet)
		if ok != (tc.want != Drop{}) || ok && got != tc.want {
			t.Errorf("%s: %+v %v, want %+v", name, got, ok, tc.want)
		}
	}
}

func FuzzParseDrop(f *testing.F) {
	f.Add("egress-1 original", []byte{0x4f, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 42, 0, 5, 10, 42, 0, 6})
	f.Add("egress-1 original", []byte{0x60})
	f.Fuzz(func(_ *testing.T, prefix string, packet []byte) { parseDrop(prefix, packet) })
}

// TestLogDrops: a table has rules that log only when it should.
func TestLogDrops(t *testing.T) {
	for _, log := range []bool{false, true} {
		table := fake(t)
		if log {
			table.LogDrops(10)
		}
		if err := table.Replace(t.Context(), rules.NewCompiler().All()); err != nil {
			t.Fatal(err)
		}
		if has := strings.Contains(strings.Join(dump(table), "\n"), "log prefix"); has != log {
			t.Errorf("with log %v the table has a rule that logs: %v", log, has)
		}
	}
}
