package nft

import (
	"encoding/binary"
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// genericHeader is the size of struct nfgenmsg.
const genericHeader = 4

// Generation returns the number of nftables' current rules in this thread's network namespace: each change, by any
// program, makes it another one, never 0. Asking takes microseconds, while listing a table takes the program nft. Who
// reads it before looking at a table can tell later that the table is still the same.
//
// Source: linux/netfilter/nf_tables.h, NFT_MSG_GETGEN.
func Generation() (uint32, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	answers, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   make([]byte, genericHeader),
	})
	if err != nil {
		return 0, err
	}
	for _, a := range answers {
		if number := generationOf(a); number != 0 {
			return number, nil
		}
	}
	return 0, errors.New("nftables did not tell its generation")
}

// generationOf returns 0 for other messages.
func generationOf(m netlink.Message) uint32 {
	if len(m.Data) < genericHeader {
		return 0
	}
	attributes, err := netlink.NewAttributeDecoder(m.Data[genericHeader:])
	if err != nil {
		return 0
	}
	attributes.ByteOrder = binary.BigEndian
	for attributes.Next() {
		if attributes.Type() == unix.NFTA_GEN_ID {
			return attributes.Uint32()
		}
	}
	return 0
}
