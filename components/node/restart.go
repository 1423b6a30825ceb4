package node

import "kubelith.io/kubelith/base/lifecycle"

// restartable returns the components that are restarted in place when they fail, panic or hang. The others end the
// process; docs/adr/022 gives the reason for each.
func restartable() map[string]lifecycle.Policy {
	// Late work of an abandoned run does no harm: its context has ended, and it writes what the next run writes.
	beside := lifecycle.Policy{Beside: true}
	// Only one run of these at a time.
	alone := lifecycle.Policy{}
	return map[string]lifecycle.Policy{
		"approver":          beside,
		"certificates":      beside,
		"cni":               beside,
		"dns":               beside, // the component stops CoreDNS itself whatever the run does
		"dns-publisher":     beside,
		"host-ports":        beside,
		"images":            beside,
		"manifests":         beside,
		"metrics-cleaner":   beside,
		"metrics-publisher": beside,
		"metrics-server":    beside,
		"network":           beside,
		"plugin-control":    beside,
		"servicelb":         beside,
		"servicelb-cleaner": beside,
		"status":            beside,
		"token":             beside,

		"controller-manager":  alone,
		"election":            alone,
		"proxy":               alone,
		"scheduler":           alone,
		"storage":             alone,
		"storage-controllers": alone,
	}
}
