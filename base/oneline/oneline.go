// Package oneline makes one line of a message: some errors of libraries have several.
package oneline

import "strings"

// Of returns the words of text, separated by single spaces.
func Of(text string) string { return strings.Join(strings.Fields(text), " ") }
