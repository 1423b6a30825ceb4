// Command suite builds JuiceFS' CSI driver and its sidecars from the sources of their authors, and prints the directory
// that has them:
//
//	juicefs-csi-driver
//	k8s.yaml            the manifest that its authors publish
//	webhook.yaml        the one for its sidecar mode
//	csi-provisioner, csi-resizer
//
// It needs the Go module proxy, and no registry. The directory is in the user's cache, so that every clone of the same
// versions has it. With --where it builds nothing and fails when there is none.
package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"kubelith.io/kubelith/integration/suite"
)

//go:embed main.go
var source []byte

// modules are built, each in the module graph of its own go.mod.
var modules = []struct{ path, version, sum, pkg, ldflags string }{
	// The checksum database of Go does not have this version: the checksum is here.
	{driver, "v0.30.0", "h1:bWQhDvsHF2WgAnxEZ5hUk2x58kdth0LR9/9QHBqb6bY=", "./cmd", "-X " + driver + "/pkg/driver.driverVersion=v0.30.0"},
	{"github.com/kubernetes-csi/external-provisioner/v6", "v6.3.0", "", "./cmd/csi-provisioner", "-X main.version=v6.3.0"},
	{"github.com/kubernetes-csi/external-resizer/v2", "v2.2.0", "", "./cmd/csi-resizer", "-X main.version=v2.2.0"},
}

const (
	driver = "github.com/juicedata/juicefs-csi-driver"
	// manifests is their folder in the module of the driver.
	manifests = "deploy"
)

func main() {
	suite.Main("juicefs", func() ([]byte, error) { return source, nil /* it has the versions */ }, build)
}

func build(dir string) error {
	for _, m := range modules {
		if err := buildModule(dir, m.path, m.version, m.sum, m.pkg, m.ldflags); err != nil {
			return fmt.Errorf("build %s@%s: %w", m.path, m.version, err)
		}
	}
	return nil
}

// buildModule builds a program in the directory of its module, which cannot be written to: go.mod and go.sum are
// copies. go.sum there has the checksums of all that the program is made of.
func buildModule(dir, path, version, sum, pkg, ldflags string) error {
	scratch, err := os.MkdirTemp("", "kubelith-juicefs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	env := []string{"GOFLAGS=", "CGO_ENABLED=0"}
	if sum != "" {
		env = append(env, "GONOSUMDB="+path)
	}
	out, err := run(scratch, env, "go", "mod", "download", "-json", path+"@"+version)
	var module struct{ Dir, Sum, Error string }
	if json.Unmarshal(out, &module) == nil && module.Error != "" {
		return errors.New(module.Error)
	}
	if err != nil {
		return err
	}
	if sum != "" && module.Sum != sum {
		return fmt.Errorf("the module proxy has it with the checksum %s, not %s", module.Sum, sum)
	}
	copies := map[string]string{"go.mod": filepath.Join(scratch, "build.mod"), "go.sum": filepath.Join(scratch, "build.sum")}
	program := filepath.Base(pkg)
	if path == driver {
		for _, name := range []string{"k8s.yaml", "webhook.yaml"} {
			copies[filepath.Join(manifests, name)] = filepath.Join(dir, name)
		}
		program = filepath.Base(path)
	}
	for from, to := range copies {
		content, err := os.ReadFile(filepath.Join(module.Dir, from))
		if err != nil {
			return err
		}
		if err := os.WriteFile(to, content, 0o644); err != nil {
			return err
		}
	}
	_, err = run(module.Dir, env, "go", "build", "-trimpath", "-buildvcs=false", "-modfile="+copies["go.mod"], "-ldflags=-s -w "+ldflags,
		"-o", filepath.Join(dir, program), pkg)
	return err
}

func run(dir string, env []string, program string, args ...string) ([]byte, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	return cmd.Output()
}
