package netevents

import (
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// TestRemovalOf: which messages of the kernel are about a removal, and of what.
func TestRemovalOf(t *testing.T) {
	message := func(kind int, attributes ...string) netlink.Message {
		e := netlink.NewAttributeEncoder()
		for i, a := range attributes {
			e.String(uint16(i+1), a) // NFTA_TABLE_NAME and NFTA_RULE_TABLE, NFTA_RULE_CHAIN
		}
		data, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind)}, Data: append(make([]byte, 4), data...)}
	}
	for name, tc := range map[string]struct {
		message netlink.Message
		want    Removal
	}{
		"a table":     {message(unix.NFT_MSG_DELTABLE, "kube-proxy"), Removal{Table: "kube-proxy"}},
		"a new table": {message(unix.NFT_MSG_NEWTABLE, "kube-proxy"), Removal{}},
		"a rule":      {message(unix.NFT_MSG_DELRULE, "kube-proxy", "services"), Removal{"kube-proxy", "services"}},
		"a new rule":  {message(unix.NFT_MSG_NEWRULE, "kube-proxy", "services"), Removal{}},
		"nothing":     {netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELTABLE)}}, Removal{}},
	} {
		if got := removalOf(tc.message); got != tc.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
