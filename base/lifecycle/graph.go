package lifecycle

import (
	"fmt"
	"slices"
	"strings"
)

// link turns components into members and links them by their needs.
func link(components []Component) ([]*member, error) {
	byName := make(map[string]*member, len(components))
	members := make([]*member, 0, len(components))
	for _, c := range components {
		if byName[c.Name()] != nil {
			return nil, fmt.Errorf("lifecycle: two components are named %q", c.Name())
		}
		m := &member{Component: c, policy: PolicyOf(c)}
		byName[c.Name()] = m
		members = append(members, m)
	}
	for _, m := range members {
		for _, name := range m.Needs() {
			need := byName[name]
			if need == nil {
				return nil, fmt.Errorf("lifecycle: %s needs %q, which is not in the group", m.Name(), name)
			}
			m.needs = append(m.needs, need)
		}
		for _, name := range StartsAfter(m.Component) {
			first := byName[name]
			if !slices.Contains(m.needs, first) {
				return nil, fmt.Errorf("lifecycle: %s starts after %q, which it does not need", m.Name(), name)
			}
			m.first = append(m.first, first)
		}
	}
	for _, m := range members {
		if path := cycle(m, nil); path != nil {
			return nil, fmt.Errorf("lifecycle: dependency cycle of components: %s", strings.Join(path, " -> "))
		}
	}
	for _, m := range members {
		addNeeder(m, m.needs)
	}
	return members, nil
}

// cycle walks the needs of m and returns the names along the first cycle, nil when there is none.
func cycle(m *member, path []string) []string {
	if i := slices.Index(path, m.Name()); i >= 0 {
		return append(path[i:], m.Name())
	}
	path = append(path, m.Name())
	for _, n := range m.needs {
		if c := cycle(n, path); c != nil {
			return c
		}
	}
	return nil
}

// addNeeder makes m a needer of each of needs and of all their needs.
func addNeeder(m *member, needs []*member) {
	for _, n := range needs {
		if !slices.Contains(n.needers, m) {
			n.needers = append(n.needers, m)
			addNeeder(m, n.needs)
		}
	}
}
