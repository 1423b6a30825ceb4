package rules

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// model is a table to which changes are applied.
type model struct {
	classes  map[*Class]map[netip.Addr]*Decision
	selected [2]map[netip.Addr]string
}

func newModel() *model {
	return &model{map[*Class]map[netip.Addr]*Decision{}, [2]map[netip.Addr]string{{}, {}}}
}

func (m *model) apply(t *testing.T, c *Changes) {
	t.Helper()
	for _, class := range c.New {
		m.classes[class] = map[netip.Addr]*Decision{}
	}
	for class, peers := range c.Peers {
		if m.classes[class] == nil {
			t.Errorf("peers of %s, which is not there", class.Name)
			continue
		}
		for ip, d := range peers {
			if d == nil {
				delete(m.classes[class], ip)
			} else {
				m.classes[class][ip] = d
			}
		}
	}
	for d, selected := range c.Selected {
		for ip, name := range selected {
			if name == "" {
				delete(m.selected[d], ip)
			} else {
				m.selected[d][ip] = name
			}
		}
	}
	for _, class := range c.Gone {
		if m.classes[class] == nil {
			t.Errorf("%s goes, which is not there", class.Name)
		}
		delete(m.classes, class)
	}
	for d, selected := range m.selected {
		for ip, name := range selected {
			if name != Closed && !slices.ContainsFunc(slices.Collect(maps.Keys(m.classes)), func(c *Class) bool { return c.Name == name }) {
				t.Errorf("%s has the class %s (%s), which is not there", ip, name, Direction(d))
			}
		}
	}
}

func (m *model) String() string {
	var lines []string
	for class, peers := range m.classes {
		for ip, d := range peers {
			lines = append(lines, fmt.Sprintf("%s %s %v", class.Name, ip, *d))
		}
		lines = append(lines, fmt.Sprintf("%s %v %v", class.Name, class.Final, class.Blocks))
	}
	for d, selected := range m.selected {
		for ip, name := range selected {
			lines = append(lines, fmt.Sprintf("%s %s %s", Direction(d), ip, name))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
