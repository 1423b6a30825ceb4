package kernel

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"kubelith.io/kubelith/base/names"
)

// Watch calls removed when a table of network policies, or a rule of those that are always there, may have been
// removed, by this process too, until ctx ends. There is at least one call after each removal.
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
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return nil
			}
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
	if len(m.Data) < genericHeader {
		return false
	}
	attributes, err := netlink.NewAttributeDecoder(m.Data[genericHeader:])
	if err != nil {
		return false
	}
	var table, chain string
	switch m.Header.Type {
	case netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELTABLE):
		for attributes.Next() {
			if attributes.Type() == unix.NFTA_TABLE_NAME {
				table = attributes.String()
			}
		}
		return table == names.PolicyTable
	case netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELRULE):
		for attributes.Next() {
			switch attributes.Type() {
			case unix.NFTA_RULE_TABLE:
				table = attributes.String()
			case unix.NFTA_RULE_CHAIN:
				chain = attributes.String()
			}
		}
		return table == names.PolicyTable && slices.Contains(fixedChains(), chain) // the chains of classes come and go
	}
	return false
}

// Check reports whether another program has removed the table, or one of its fixed rules: Replace writes it again.
func (t *Table) Check(ctx context.Context) (removed bool) {
	if !t.whole {
		return false
	}
	t.whole = hasRules(ctx, t.nft, t.fixed)
	return !t.whole
}

// hasRules reports whether chains have as many rules.
func hasRules(ctx context.Context, nft knftables.Interface, wanted map[string]int) bool {
	for chain, n := range wanted {
		if has, err := nft.ListRules(ctx, chain); err != nil || len(has) != n {
			return false
		}
	}
	return true
}
