package netevents

import (
	"context"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/reconcile"
)

// Removal is a table, or a rule, that is no longer in nftables. Another program may have removed it, or this one.
type Removal struct {
	// Table is its name; "" when there were too many changes at once: anything may have been removed.
	Table string
	// Chain is that of a rule, and "" of a table.
	Chain string
}

// Removals calls removed after each removal from nftables, until ctx ends.
//
// Source: linux/netfilter/nf_tables.h and nfnetlink.h.
func Removals(ctx context.Context, removed func(Removal)) error {
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
			removed(Removal{})
			if !reconcile.Sleep(ctx, 100*time.Millisecond) {
				return nil
			}
		}
		for _, m := range messages {
			if r := removalOf(m); r != (Removal{}) {
				removed(r)
			}
		}
	}
}

// TableRemovals calls removed when a table of this name, of any family, may no longer be in nftables, until ctx ends.
func TableRemovals(ctx context.Context, table string, removed func()) error {
	return Removals(ctx, func(r Removal) {
		if r.Table == "" || r.Table == table && r.Chain == "" {
			removed()
		}
	})
}

// removalOf returns the zero Removal for other messages.
func removalOf(m netlink.Message) (r Removal) {
	const genericHeader = 4 // nfgenmsg
	if len(m.Data) < genericHeader {
		return r
	}
	attributes, err := netlink.NewAttributeDecoder(m.Data[genericHeader:])
	if err != nil {
		return r
	}
	switch m.Header.Type {
	case netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELTABLE):
		for attributes.Next() {
			if attributes.Type() == unix.NFTA_TABLE_NAME {
				r.Table = attributes.String()
			}
		}
	case netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELRULE):
		for attributes.Next() {
			switch attributes.Type() {
			case unix.NFTA_RULE_TABLE:
				r.Table = attributes.String()
			case unix.NFTA_RULE_CHAIN:
				r.Chain = attributes.String()
			}
		}
	}
	return r
}
