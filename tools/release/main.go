// Release creates what belongs to the executables of a release, from the executables alone, so that two runs on the
// same ones give the same bytes: a bill of materials for each, an image, checksums and, with a key, signatures.
//
//	release make -dist DIR -version VERSION -created TIME -payload DIR    what `make release` runs after `make dist`
//	release sign -dist DIR -key FILE                                      on the machine that has the key
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("make or sign")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	dist := flags.String("dist", "dist", "the directory of the release")
	version := flags.String("version", "", "of Kubelith")
	created := flags.String("created", "", "the time of the release, as RFC 3339")
	payload := flags.String("payload", "", "the directory with the embedded programs of each architecture")
	architectures := flags.String("architectures", "amd64 arm64", "those of the executables")
	key := flags.String("key", "", "the secret key of minisign")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "make":
		at, err := time.Parse(time.RFC3339, *created)
		if err != nil {
			return fmt.Errorf("-created: %w", err)
		}
		return build(*dist, *payload, *version, at, strings.Fields(*architectures))
	case "sign":
		return sign(*dist, *key, os.Getenv("MINISIGN_PASSWORD"))
	}
	return fmt.Errorf("%q: make or sign", args[0])
}

// build creates everything except signatures.
func build(dist, payload, version string, created time.Time, architectures []string) error {
	for _, arch := range architectures {
		bill, err := billOfMaterials(filepath.Join(dist, "kubelith-"+arch), filepath.Join(payload, arch), version, created)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dist, "kubelith-"+arch+".cdx.json"), bill, 0o644); err != nil {
			return err
		}
	}
	if err := writeImage(dist, version, created, architectures); err != nil {
		return err
	}
	return writeSums(dist)
}
