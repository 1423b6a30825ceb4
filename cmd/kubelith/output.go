package kubelith

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// outputFlag is -o of the commands that print text for people, and other formats for programs.
func outputFlag(others ...string) *cli.GenericFlag {
	o := &outputFormat{"text", append([]string{"text"}, others...)}
	return &cli.GenericFlag{Name: "output", Aliases: []string{"o"}, Usage: o.choice(), Value: o}
}

// outputFormat implements cli.Generic: the command line is refused when it has another one.
type outputFormat struct {
	value string
	all   []string
}

// choice returns "text, json or html".
func (o *outputFormat) choice() string {
	last := len(o.all) - 1
	return strings.Join(o.all[:last], ", ") + " or " + o.all[last]
}

// String returns the format.
func (o *outputFormat) String() string { return o.value }

// Set implements flag.Value.
func (o *outputFormat) Set(value string) error {
	if !slices.Contains(o.all, value) {
		return fmt.Errorf("use %s", o.choice())
	}
	o.value = value
	return nil
}

// wantsJSON reports whether -o json is given.
func wantsJSON(c *cli.Context) bool { return c.String("output") == "json" }
