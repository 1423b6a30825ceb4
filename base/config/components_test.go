package config

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocumentedNames: docs/configuration.md lists the names that --log-level knows.
func TestDocumentedNames(t *testing.T) {
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?s)The components are ([a-z-]+,.*?)\. An unknown name`).FindSubmatch(text)
	if list == nil {
		t.Fatal("the list was not found")
	}
	got := strings.Fields(strings.NewReplacer(",", " ", " and ", " ").Replace(strings.ReplaceAll(string(list[1]), "\n", " ")))
	if want := logComponents(); !slices.Equal(got, want) {
		t.Errorf("it has  %v\nwant it: %v", got, want)
	}
}

// TestComponentsSorted: the lists that users read are in alphabetical order, and no name is in them twice.
func TestComponentsSorted(t *testing.T) {
	names := namesOf(func(Component) bool { return true })
	if sorted := slices.Compact(slices.Sorted(slices.Values(names))); !slices.Equal(names, sorted) {
		t.Errorf("%v, want %v", names, sorted)
	}
}
