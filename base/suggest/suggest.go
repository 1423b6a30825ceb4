// Package suggest finds the name that a user has mistyped.
package suggest

import (
	"strings"

	"github.com/agnivade/levenshtein"
)

// Nearest returns `: did you mean "X"?` for the nearest of known, to append to a message, or "" when none is near.
func Nearest(word string, known []string) string {
	best, distance := "", len(word)/3+2
	for _, k := range known {
		if d := levenshtein.ComputeDistance(plain(word), plain(k)); d < distance {
			best, distance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return `: did you mean "` + best + `"?`
}

// plain unifies spellings that differ only in case, dashes and a plural: cluster-cidr and clusterCIDR.
func plain(s string) string {
	return strings.TrimSuffix(strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s)), "s")
}
