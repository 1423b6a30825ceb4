#!/usr/bin/env bash
# make size: lines of our own Go by folder, without generated code. "own" is what runs or ships; tests, benchmarks and test programs
# are counted separately.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files -z '*.go' | xargs -0 awk '
	FNR == 1 { generated = 0 }
	FNR <= 20 && /^\/\/ Code generated .* DO NOT EDIT\.$/ { generated = 1 }
	{ lines[FILENAME]++; if (generated) skip[FILENAME] = 1 }
	END { for (f in lines) if (!(f in skip)) print lines[f], f }' |
	awk '
	function folder(path,   n, p) {
		n = split(path, p, "/")
		if (n == 1) return "(root)"
		if (n == 2 || p[1] == "integration" || p[1] == "bench") return p[1]
		return p[1] == "components" && n > 3 && p[2] != "node" ? p[1] "/" p[2] "/" p[3] : p[1] "/" p[2]
	}
	{
		f = folder($2)
		test = $2 ~ /_test\.go$/ || f == "integration" || f == "bench"
		if (test) { tests[f] += $1; alltests += $1 } else { own[f] += $1; files[f]++; all += $1; allfiles++ }
		seen[f] = 1
	}
	END {
		format = "%-34s %7s %6s %7s\n"
		printf format, "folder", "own", "files", "tests"
		sort = "sort -k2,2nr -k1,1"
		for (f in seen) printf format, f, own[f] + 0, files[f] + 0, tests[f] + 0 | sort
		close(sort)
		printf format, "all", all, allfiles, alltests
	}'
