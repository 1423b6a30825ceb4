package oneline

import "testing"

func TestOf(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "",
		"one":                               "one",
		"2 errors:\n\t* one\n\t* two  \r\n": "2 errors: * one * two",
	} {
		if got := Of(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
