package main

import (
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/unitchecker"
	"honnef.co/go/tools/staticcheck"
)

func main() {
	var all []*analysis.Analyzer
	for _, a := range staticcheck.Analyzers {
		all = append(all, a.Analyzer)
	}
	unitchecker.Main(all...)
}
