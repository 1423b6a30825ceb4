package config

import (
	"strings"

	"github.com/agnivade/levenshtein"
)

// suggest returns `: did you mean "X"?` for the nearest of known, or the list of them when none is near.
func suggest(word string, known []string) string {
	best, distance := "", len(word)/3+2
	for _, k := range known {
		if d := levenshtein.ComputeDistance(plain(word), plain(k)); d < distance {
			best, distance = k, d
		}
	}
	switch {
	case best != "":
		return `: did you mean "` + best + `"?`
	case len(known) <= 12:
		return ": use one of " + strings.Join(known, ", ")
	}
	return ": remove it"
}

// plain makes spellings alike that differ only in case, dashes and a plural: cluster-cidr and clusterCIDR.
func plain(s string) string {
	return strings.TrimSuffix(strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s)), "s")
}
