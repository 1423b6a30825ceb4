package logging

import "testing"

func TestOnce(t *testing.T) {
	var o Once
	for i, step := range []struct {
		subject, text string
		news          bool
	}{
		{"a", "", false},
		{"a", "broken", true},
		{"a", "broken", false},
		{"b", "broken", true},
		{"a", "worse", true},
		{"a", "broken", true},
		{"a", "", false},
		{"a", "broken", true},
		{"b", "broken", false},
	} {
		if got := o.News(step.subject, step.text); got != step.news {
			t.Errorf("step %d, %s %q: %v", i, step.subject, step.text, got)
		}
	}
}
