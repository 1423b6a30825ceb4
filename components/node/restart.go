package node

import "kubelith.io/kubelith/components/lifecycle"

// restartable are the components that are started again in place when they fail, panic or hang. The others end the process: docs/adr/022
// says why each stands where it does.
func restartable() map[string]lifecycle.Policy {
	// What a run that was left behind does late does no harm: its context has ended, and what it writes is what another one writes.
	beside := lifecycle.Policy{Beside: true}
	// Of these there is one at a time.
	alone := lifecycle.Policy{}
	return map[string]lifecycle.Policy{
		"approver":          beside,
		"cni":               beside,
		"dns":               beside, // CoreDNS itself is stopped whatever the run does
		"dns-publisher":     beside,
		"host-ports":        beside,
		"images":            beside,
		"manifests":         beside,
		"metrics-cleaner":   beside,
		"metrics-server":    beside,
		"network":           beside,
		"plugin-control":    beside,
		"servicelb":         beside,
		"servicelb-cleaner": beside,
		"status":            beside,
		"token":             beside,

		"controller-manager": alone,
		"election":           alone,
		"proxy":              alone,
		"scheduler":          alone,
		"storage":            alone,
	}
}
