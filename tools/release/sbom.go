package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

// inGo and inC are the programs within the executable, of its payload and of its images.
func inGo() []string {
	return []string{"runc", "containerd-shim-runc-v2", "loopback", "portmap", "local", "hello"}
}
func inC() []string { return []string{"kubelith-keeper", "kubelith-pause", "kubelith-cni", "pause"} }

// billOfMaterials lists what an executable was built from, in CycloneDX's JSON: its modules as the linker has recorded
// them, and those of the programs that it embeds, each with its SHA-256.
func billOfMaterials(file, payload, version string, created time.Time) ([]byte, error) {
	bom := cyclonedx.NewBOM()
	root, err := component(file, "kubelith", version)
	if err != nil {
		return nil, err
	}
	bom.Metadata = &cyclonedx.Metadata{Timestamp: created.UTC().Format(time.RFC3339), Component: root}
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s has no list of its modules: %w", file, err)
	}
	libraries := modules(info)
	libraries = append(libraries, cyclonedx.Component{Type: cyclonedx.ComponentTypeLibrary, BOMRef: "go", Name: "go", Version: info.GoVersion})
	programs := []cyclonedx.Component{}
	for _, name := range append(inGo(), inC()...) {
		program, err := component(filepath.Join(payload, name), name, "")
		if err != nil {
			return nil, err
		}
		if info, err := buildinfo.ReadFile(filepath.Join(payload, name)); err == nil {
			program.Version = info.Main.Version
			inside := modules(info)
			for i := range inside {
				inside[i].BOMRef = name + ":" + inside[i].BOMRef // several programs have one module
			}
			program.Components = &inside
		} else if !slices.Contains(inC(), name) {
			return nil, fmt.Errorf("%s has no list of its modules: %w", name, err)
		}
		programs = append(programs, *program)
	}
	all := append(libraries, programs...)
	bom.Components = &all
	var out bytes.Buffer
	err = cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cyclonedx.SpecVersion1_6)
	return out.Bytes(), err
}

// component is a program with its checksum.
func component(file, name, version string) (*cyclonedx.Component, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(content)
	return &cyclonedx.Component{
		Type: cyclonedx.ComponentTypeApplication, BOMRef: name, Name: name, Version: version,
		Hashes: &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
	}, nil
}

// modules are the modules of a program, with their sums as go.sum has them.
func modules(info *debug.BuildInfo) []cyclonedx.Component {
	var out []cyclonedx.Component
	for _, m := range info.Deps {
		used := m
		if m.Replace != nil {
			used = m.Replace
		}
		c := cyclonedx.Component{Type: cyclonedx.ComponentTypeLibrary, BOMRef: m.Path, Name: m.Path, Version: used.Version}
		if strings.HasPrefix(used.Path, ".") { // a directory of this repository
			c.Version = m.Version
		} else {
			c.PackageURL = "pkg:golang/" + used.Path + "@" + used.Version
		}
		if used.Sum != "" {
			c.Properties = &[]cyclonedx.Property{{Name: "go:sum", Value: used.Sum}}
		}
		out = append(out, c)
	}
	return out
}
