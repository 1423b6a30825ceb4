// Package nft opens and removes tables of nftables. Each start of the program nft takes 5 to 20 ms of CPU, most of it
// for its caches of the tables, so that a start of a node calls it only where there is something to write.
package nft

import (
	"errors"
	"fmt"
	"sync"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// opened are the tables of this process, by family and name.
var opened sync.Map

// Open returns the table, which need not exist, or an error if nft does not work on this host. knftables calls nft
// twice to find out; that is done once for each table. Several goroutines may use what it returns.
func Open(family knftables.Family, table string) (knftables.Interface, error) {
	key := [2]string{string(family), table}
	if known, ok := opened.Load(key); ok {
		return known.(knftables.Interface), nil
	}
	nft, err := knftables.New(family, table)
	if err != nil {
		return nil, err
	}
	opened.Store(key, nft)
	return nft, nil
}

// Remove removes the table from the kernel, if it is there; a kernel without nftables has none. family is inet or
// bridge.
func Remove(family knftables.Family, table string) error {
	number, known := families[family]
	if !known { // the kernel would take 0 for all families
		return fmt.Errorf("remove table %s of nftables: family %q is not known here: a bug in Kubelith", table, family)
	}
	conn, err := nftables.New()
	if err == nil {
		conn.DelTable(&nftables.Table{Name: table, Family: number})
		err = conn.Flush()
	}
	if err != nil && !absent(err) {
		return fmt.Errorf("remove table %s %s of nftables: %w", family, table, err)
	}
	return nil
}

// absent reports whether the table is not there, or nothing of nftables.
func absent(err error) bool {
	for _, e := range []error{unix.ENOENT, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

var families = map[knftables.Family]nftables.TableFamily{
	knftables.InetFamily:   nftables.TableFamilyINet,
	knftables.BridgeFamily: nftables.TableFamilyBridge,
}

// Drops names a base chain at the hook forward whose policy is drop, of any program: "table ip filter, chain FORWARD".
// It returns "" if there is none, or no nftables.
func Drops() string {
	conn, err := nftables.New()
	if err != nil {
		return ""
	}
	chains, err := conn.ListChains()
	if err != nil {
		return ""
	}
	return dropping(chains)
}

func dropping(chains []*nftables.Chain) string {
	for _, c := range chains {
		if c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookForward && c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop &&
			c.Table != nil && names[c.Table.Family] != "" {
			return fmt.Sprintf("table %s %s, chain %s", names[c.Table.Family], c.Table.Name, c.Name)
		}
	}
	return ""
}

// names are those of the families that have a hook forward; hooks of netdev and arp have the same numbers.
var names = map[nftables.TableFamily]string{
	nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet", nftables.TableFamilyBridge: "bridge",
}
