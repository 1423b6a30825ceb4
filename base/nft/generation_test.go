package nft

import (
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

func TestGenerationOf(t *testing.T) {
	header := []byte{0, 0, 0, 0}
	attribute := func(kind byte) []byte { return []byte{8, 0, kind, 0, 0, 0, 1, 7} } // native order: little-endian
	for name, c := range map[string]struct {
		data []byte
		want uint32
	}{
		"the generation":    {append(header, attribute(unix.NFTA_GEN_ID)...), 263},
		"another attribute": {append(header, attribute(unix.NFTA_GEN_PROC_PID)...), 0},
		"too short":         {[]byte{0, 0}, 0},
		"cut off":           {append(header, 8, 0, 1), 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := generationOf(netlink.Message{Data: c.data}); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}
