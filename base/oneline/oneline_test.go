package oneline

import (
	"errors"
	"io/fs"
	"testing"
)

func TestOf(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "",
		"one":                               "one",
		"2 errors:\n\t* one\n\t* two  \r\n": "2 errors: * one * two",
		"no\u00a0break, next\u0085line":     "no break, next line",
		"\x1b[2Jone\n\x1b[1Atwo":            "?[2Jone ?[1Atwo",
	} {
		if got := Of(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestMaskAndEscape(t *testing.T) {
	for _, c := range []struct{ text, masked, escaped string }{
		{"plain \t  текст 日本 é \"=\\", "plain \t  текст 日本 é \"=\\", "plain \t  текст 日本 é \"=\\"},
		{"C0 \x1b[2J\x1b]0;title\a", "C0 ?[2J?]0;title?", `C0 \x1b[2J\x1b]0;title\a`},
		{"\x00\x7f\n", "???", `\x00\x7f\n`},
		{"a\r2030-01-01T00:00:00Z error", "a?2030-01-01T00:00:00Z error", `a\r2030-01-01T00:00:00Z error`},
		{"C1 \u009b2J, raw \x9b2J", "C1 ?2J, raw \ufffd2J", `C1 \u009b2J, raw \x9b2J`},
		{"next\u0085line\u2028paragraph\u2029", "next?line?paragraph?", `next\u0085line\u2028paragraph\u2029`},
		{"\u202ereversed\u202c \u2066isolated\u2069 \u200emark", "?reversed? ?isolated? ?mark", `\u202ereversed\u202c \u2066isolated\u2069 \u200emark`},
		{"zero\u200bwidth\ufeff, tag \U000e0001", "zero?width?, tag ?", `zero\u200bwidth\ufeff, tag \U000e0001`},
		{"\ufffd", "\ufffd", "\ufffd"},
	} {
		if got := Mask(c.text); got != c.masked {
			t.Errorf("Mask %q: %q, want %q", c.text, got, c.masked)
		}
		if got := Escape(c.text); got != c.escaped {
			t.Errorf("Escape %q: %q, want %q", c.text, got, c.escaped)
		}
	}
}

func TestShorten(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want string
	}{
		{"", 0, ""},
		{"abc", 3, "abc"},
		{"abcd", 3, "abc..."},
		{"aé", 2, "a..."},
	} {
		if got := Shorten(c.text, c.n); got != c.want {
			t.Errorf("%q, %d: %q, want %q", c.text, c.n, got, c.want)
		}
	}
}

func TestJoin(t *testing.T) {
	one, two := errors.New("one"), errors.New("two")
	for want, errs := range map[string][]error{
		"one":      {nil, one},
		"one; two": {one, nil, two},
	} {
		if err := Join(errs); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		if errs[len(errs)-1] == nil {
			t.Error("changed its argument")
		}
	}
	for _, errs := range [][]error{nil, {nil, nil}} {
		if err := Join(errs); err != nil {
			t.Error(err)
		}
	}
	if err := Join([]error{nil, fs.ErrNotExist}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v has lost its kind", err)
	}
}
