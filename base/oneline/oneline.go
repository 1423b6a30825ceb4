// Package oneline makes a text that another program wrote fit for one line of a terminal. Such a text may have several
// lines, any length, and characters on which a terminal acts: sequences that move its cursor, changes of direction.
package oneline

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// masked replaces a character that a terminal does not show.
const masked = '?'

// Of returns the words of text, separated by single spaces, with every other character that is not printable masked.
func Of(text string) string { return Mask(strings.Join(strings.Fields(text), " ")) }

// Mask replaces every character that is not printable (control and format characters, line breaks) by a question mark.
// Tabs stay.
func Mask(text string) string {
	return strings.Map(func(r rune) rune {
		if shown(r) {
			return r
		}
		return masked
	}, text)
}

// Escape is Mask without loss: it writes what is not printable as in a Go string.
func Escape(text string) string {
	var b strings.Builder
	for i, r := range text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], string(utf8.RuneError)):
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case shown(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// shown reports whether a terminal shows a character, and does not act on it.
func shown(r rune) bool { return r == '\t' || strconv.IsPrint(r) }

// Shorten cuts a text to its first n bytes, without a part of a character, and marks the cut.
func Shorten(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + "..."
}

// Join is errors.Join on one line: the messages, each as Of has it, separated by semicolons. Of several errors it keeps
// the text only; a single one it returns as it is.
func Join(errs []error) error {
	errs = slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	if len(errs) < 2 {
		return errors.Join(errs...)
	}
	var texts []string
	for _, err := range errs {
		texts = append(texts, Of(err.Error()))
	}
	return errors.New(strings.Join(texts, "; "))
}
