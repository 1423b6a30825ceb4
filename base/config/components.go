package config

import "slices"

// Component is a name that --log-level knows and, where it can be switched off, --disable.
type Component struct {
	Name     string
	Optional Optional
	Kind     Kind
}

// Optional is where --disable accepts a component.
type Optional int

// Where a component can be switched off by its own name. Others go with one of these (components/node, builder.with).
const (
	Never Optional = iota
	OnServers
	Everywhere
)

// Kind is what a name stands for.
type Kind int

// The kinds.
const (
	Runs    Kind = iota // a lifecycle.Component
	LogOnly             // a part of the program that is none, such as what runs before the components
	Builtin             // a plugin that comes with Kubelith: its lines of the log have component=plugins
)

// Components are all names, in alphabetical order. This package cannot take them from the components, which are built
// after the configuration has been checked; TestNames in components/node proves that they are the same.
func Components() []Component {
	return []Component{
		{Name: "apiserver"},
		{Name: "approver"},
		{Name: "ca-rotation"},
		{Name: "ca-trust"},
		{Name: "certificates"},
		{Name: "check", Kind: LogOnly},
		{Name: "client", Kind: LogOnly},
		{Name: "cni"},
		{Name: "config", Kind: LogOnly},
		{Name: "connection"},
		{Name: "containerd", Optional: OnServers},
		{Name: "controller-manager", Optional: OnServers},
		{Name: "dns", Optional: Everywhere},
		{Name: "dns-publisher"},
		{Name: "election"},
		{Name: "encryption"},
		{Name: "etcd"},
		{Name: "host-ports"},
		{Name: "images"},
		{Name: "join", Kind: LogOnly},
		{Name: "kubelet", Optional: OnServers}, // an agent without it would do nothing
		{Name: "kubelith", Kind: LogOnly},
		{Name: "kubernetes", Kind: LogOnly}, // upstream's code whose component is unknown
		{Name: "local-storage", Optional: Everywhere, Kind: Builtin},
		{Name: "manifests", Optional: OnServers},
		{Name: "metrics-cleaner"}, // runs instead of metrics-publisher while metrics-server is switched off
		{Name: "metrics-publisher"},
		{Name: "metrics-server", Optional: OnServers},
		{Name: "network", Optional: Everywhere},
		{Name: "network-policy", Optional: Everywhere},
		{Name: "network-policy-cleaner"}, // runs instead of network-policy while that is switched off
		{Name: "pki", Kind: LogOnly},
		{Name: "plugin-control"},
		{Name: "plugins"},
		{Name: "podlink"},
		{Name: "proxy", Optional: Everywhere},
		{Name: "recorder"},
		{Name: "scheduler", Optional: OnServers},
		{Name: "servers"},
		{Name: "servicelb", Optional: OnServers},
		{Name: "servicelb-cleaner"}, // runs instead of servicelb while that is switched off
		{Name: "snapshots"},
		{Name: "status"},
		{Name: "storage"},
		{Name: "storage-controllers"},
		{Name: "token"},
		{Name: "tunnel"},
		{Name: "upgrader"},
		{Name: "vip"},
	}
}

// logComponents returns what component= of a line can be; each can have its own level.
func logComponents() []string {
	return namesOf(func(c Component) bool { return c.Kind != Builtin })
}

// optional returns what --disable accepts on a server or an agent.
func optional(role Optional) []string {
	return namesOf(func(c Component) bool { return c.Optional >= role })
}

func namesOf(those func(Component) bool) (names []string) {
	for _, c := range slices.DeleteFunc(Components(), func(c Component) bool { return !those(c) }) {
		names = append(names, c.Name)
	}
	return names
}
