package config

import "strings"

// suggest returns `: did you mean "X"?` for the nearest of known, or the list of them when none is near.
func suggest(word string, known []string) string {
	best, distance := "", len(word)/3+2
	for _, k := range known {
		if d := levenshtein(plain(word), plain(k)); d < distance {
			best, distance = k, d
		}
	}
	switch {
	case best != "":
		return `: did you mean "` + best + `"?`
	case len(known) <= 10:
		return ": use one of " + strings.Join(known, ", ")
	}
	return ": remove it"
}

// plain makes spellings alike that differ only in case, dashes and a plural: cluster-cidr and clusterCIDR.
func plain(s string) string {
	return strings.TrimSuffix(strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s)), "s")
}

// levenshtein counts the insertions, deletions and substitutions of bytes that turn a into b.
func levenshtein(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
