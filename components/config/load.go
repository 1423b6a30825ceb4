package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"
)

// Load returns the defaults, overwritten by the file, overwritten by the flags of c that were given (a list
// flag replaces the file's list). The file is the one named by --config, which must exist, or else
// DefaultFile if that exists. Commands with only some of the flags may call it too.
//
// Paths come back absolute and NodeName is set. The result is not validated: call Validate.
func Load(c *cli.Context) (*Server, error) {
	s := Default()
	if path := c.String(configFlag); path != "" {
		err := s.fromFile(path)
		if errors.Is(err, fs.ErrNotExist) && !c.IsSet(configFlag) {
			err = nil
		}
		if err != nil {
			return nil, err
		}
	}
	s.fromFlags(c)
	for key, path := range s.paths() {
		if *path == "" {
			continue // Validate complains
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return nil, fmt.Errorf("%s: make %q absolute: %w", label(key), *path, err)
		}
		*path = abs
	}
	if s.NodeName == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("the host has no name (%w): set %s", err, label("nodeName"))
		}
		s.NodeName = strings.ToLower(host)
	}
	return s, nil
}

// AdminKubeconfig is where a server that was given no flags writes the admin kubeconfig: what file (DefaultFile) says, or the default
// when it does not exist, cannot be read or is wrong. For commands that take no flags of ours.
func AdminKubeconfig(file string) string {
	s := Default()
	if err := s.fromFile(file); err != nil || s.WriteKubeconfig == "" {
		return Default().WriteKubeconfig
	}
	return s.WriteKubeconfig
}

// paths returns the fields that are paths, by key.
func (s *Server) paths() map[string]*string {
	return map[string]*string{
		"dataDir":         &s.DataDir,
		"runDir":          &s.RunDir,
		"kubeletRootDir":  &s.KubeletRootDir,
		"writeKubeconfig": &s.WriteKubeconfig,
	}
}

// fromFile overwrites s with the settings of a file.
func (s *Server) fromFile(path string) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w: give --config a file that exists", path, fs.ErrNotExist)
	}
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	return decode(path, data, s)
}
