package kernel

import (
	"context"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/components/worker/policy/rules"
)

// Watch calls removed when a table of network policies may have been removed, by this process too, until ctx ends. There is at
// least one call after each removal.
//
// Source: linux/netfilter/nf_tables.h and nfnetlink.h.
func Watch(ctx context.Context, removed func()) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err == nil {
		err = conn.JoinGroup(unix.NFNLGRP_NFTABLES)
	}
	if err != nil {
		return fmt.Errorf("follow changes of nftables: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	for {
		messages, err := conn.Receive()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil { // too many changes at once
			removed()
			time.Sleep(100 * time.Millisecond)
		}
		for _, m := range messages {
			if isRemoval(m) {
				removed()
			}
		}
	}
}

func isRemoval(m netlink.Message) bool {
	const genericHeader = 4 // nfgenmsg
	if m.Header.Type != netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELTABLE) || len(m.Data) < genericHeader {
		return false
	}
	attributes, err := netlink.NewAttributeDecoder(m.Data[genericHeader:])
	if err != nil {
		return false
	}
	for attributes.Next() {
		if attributes.Type() == unix.NFTA_TABLE_NAME && attributes.String() == names.PolicyTable {
			return true
		}
	}
	return false
}

// Check notices that somebody has removed the table, and reports it: Replace writes it again.
func (t *Table) Check(ctx context.Context) (removed bool) {
	if !t.whole {
		return false
	}
	chains, err := t.nft.List(ctx, "chains")
	for _, c := range chains {
		if c == rules.Closed && err == nil {
			return false
		}
	}
	t.whole = false
	return true
}
