//go:build seccomp

// Command seccomp compiles seccomp profiles to the programs that runc is built with (patches/runc/runc-seccomp.patch).
// It has to run on the architecture that they are for.
//
//	profiles | seccomp DIR
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/opencontainers/runc/libcontainer/seccomp"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func main() {
	if err := run(os.Stdin, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "seccomp:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, args []string) error {
	if len(args) != 1 {
		return errors.New("give the directory for the programs")
	}
	profiles := json.NewDecoder(in)
	for profiles.More() {
		var profile specs.LinuxSeccomp
		if err := profiles.Decode(&profile); err != nil {
			return err
		}
		config, err := specconv.SetupSeccomp(&profile)
		if err != nil {
			return err
		}
		key, ok := seccomp.Key(config)
		if !ok {
			return errors.New("a profile has a listener or flags")
		}
		program, err := seccomp.Compile(config)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(args[0], key), program, 0o644); err != nil {
			return err
		}
	}
	return nil
}
