package upgrade

import (
	"context"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"kubelith.io/kubelith/host"
)

// Program is an executable of Kubelith.
type Program struct {
	// Release is Kubelith's version, Kubernetes and Etcd those of what is in it.
	Release    string `json:"release"`
	Kubernetes string `json:"kubernetes"`
	Etcd       string `json:"etcd"`
	// SHA256 of the file, in hexadecimal.
	SHA256 string `json:"sha256"`
}

// String names the program for users.
func (p Program) String() string {
	return fmt.Sprintf("Kubelith %s (Kubernetes %s)", p.Release, p.Kubernetes)
}

// mainPackage is the main package of Kubelith.
const mainPackage = "kubelith.io/kubelith"

// answerTimeout bounds `kubelith version`, which does nothing else.
const answerTimeout = time.Minute

// recognize refuses a file that is not an executable of Kubelith for this machine. It executes nothing.
func recognize(file string) error {
	program, err := elf.Open(file)
	var path *os.PathError
	switch {
	case errors.As(err, &path):
		return err
	case err != nil:
		return fmt.Errorf("%s is not an executable: give the file of a release", file)
	}
	machine := program.Machine
	program.Close()
	if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]; machine != want {
		return fmt.Errorf("%s is built for %s, and this machine needs %s: give the file for it", file, machine, want)
	}
	info, err := buildinfo.ReadFile(file)
	if err != nil || info.Path != mainPackage {
		return fmt.Errorf("%s is not an executable of Kubelith", file)
	}
	return nil
}

// ask returns what an executable reports about itself.
func ask(ctx context.Context, file string) (Program, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	text, err := host.Run(ctx, "", file, "version")
	if err != nil {
		return Program{}, fmt.Errorf("%s does not run on this machine: %w", file, err)
	}
	p, err := parseVersion(text)
	if err != nil {
		return p, fmt.Errorf("%s version: %w", file, err)
	}
	p.SHA256, err = sum(file)
	return p, err
}

// parseVersion reads the lines of `kubelith version`, which have a name and a version.
func parseVersion(text string) (Program, error) {
	var p Program
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "kubelith":
			p.Release = fields[1]
		case "kubernetes":
			p.Kubernetes = fields[1]
		case "etcd":
			p.Etcd = fields[1]
		}
	}
	if p.Release == "" || p.Kubernetes == "" || p.Etcd == "" {
		return p, fmt.Errorf("it does not print the versions of kubelith, kubernetes and etcd: %q", text)
	}
	return p, nil
}
