package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/urfave/cli/v2"
)

// Load returns the defaults, overwritten by the file, overwritten by the flags given in c (a list flag replaces the
// file's list). The file is the one named by --config, which must exist, or else DefaultFile if that exists. Commands
// with only some of the flags may call it too.
//
// Paths come back absolute and NodeName is set. The result is not validated: call Validate. When only keys of the file
// are wrong, the error has a line for each of them, and the result has the other keys.
func Load(c *cli.Context) (*Server, error) {
	s := Default()
	wrong, err := load(c, s)
	if err != nil {
		return nil, err
	}
	if path := c.String(configFlag); path != "" {
		var err error
		if s.File, err = filepath.Abs(path); err != nil {
			return nil, fmt.Errorf("--%s: make %q absolute: %w", configFlag, path, err)
		}
	}
	for i := range s.Plugins {
		s.Plugins[i].File = s.File // as in Reload
	}
	if err := s.fromK3s(c); err != nil {
		wrong = errors.Join(wrong, err)
	}
	return s, wrong
}

// fromK3s applies k3s' switches.
func (s *Server) fromK3s(c *cli.Context) (wrong error) {
	if c.Bool(k3sNoSnapshots) {
		s.SnapshotSchedule = SnapshotsNever
	}
	if c.Bool(k3sS3) && s.SnapshotS3Bucket == "" {
		wrong = fmt.Errorf("--%s: the store has no bucket: set %s", k3sS3, label("snapshotS3Bucket"))
	}
	if c.IsSet(k3sCompress) && !c.Bool(k3sCompress) {
		wrong = errors.Join(wrong, fmt.Errorf("--%s=false: snapshots are always compressed: leave it out", k3sCompress))
	}
	return wrong
}

// Reload reads the file of a running server again. Only its plugins take effect before the next start; changed are the
// other keys that differ from before, the file as last read. The plugins are valid.
func Reload(path string, before *Server) (now *Server, changed []string, err error) {
	now = Default()
	if err := fromFile(path, now); err != nil {
		return nil, nil, err
	}
	var p problems
	validatePlugins(&p, now.Plugins)
	if len(p) > 0 {
		return nil, nil, errors.Join(p...)
	}
	for _, f := range fields(now) {
		if f.key != "" && f.key != "plugins" && before != nil && !reflect.DeepEqual(f.in(now).Interface(), f.in(before).Interface()) {
			changed = append(changed, f.key)
		}
	}
	return now, changed, nil
}

// LoadAgent is Load for an agent.
func LoadAgent(c *cli.Context) (*Agent, error) {
	a := DefaultAgent()
	wrong, err := load(c, a)
	if err != nil {
		return nil, err
	}
	return a, wrong
}

// LoadDirs is Load for the commands that take DirFlags: the file may be an agent's; then only the part that servers
// share is returned.
func LoadDirs(c *cli.Context) (*Server, error) {
	s, err := Load(c)
	var other wrongKind
	if !errors.As(err, &other) {
		return s, err
	}
	a, agentErr := LoadAgent(c)
	if errors.As(agentErr, &other) {
		return nil, err
	}
	if agentErr != nil {
		return nil, agentErr
	}
	s = Default()
	s.Node = a.Node
	fromFlags(c, s)
	return s, absolute(s)
}

// load fills s. wrong has the errors of wrong keys in the file; s is filled without them.
func load(c *cli.Context, s settings) (wrong, err error) {
	if path := c.String(configFlag); path != "" {
		err := fromFile(path, s)
		var keys wrongKeys
		switch {
		case errors.As(err, &keys):
			wrong = keys.error
		case errors.Is(err, fs.ErrNotExist) && !c.IsSet(configFlag):
		case err != nil:
			return nil, err
		}
	}
	fromFlags(c, s)
	if err := absolute(s); err != nil {
		return nil, err
	}
	if n := s.node(); n.NodeName == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("the host has no name (%w): set %s", err, label("nodeName"))
		}
		n.NodeName = strings.ToLower(host)
	}
	return wrong, nil
}

// absolute makes the paths of s absolute.
func absolute(s settings) error {
	for key, path := range s.paths() {
		if *path == "" {
			continue // Validate reports it where a path is required
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("%s: make %q absolute: %w", label(key), *path, err)
		}
		*path = abs
	}
	return nil
}

// AdminKubeconfig is where a server without flags writes the admin kubeconfig: the path in file (DefaultFile), or the
// default when the file does not exist, cannot be read or is wrong. It is for commands that take none of our flags.
func AdminKubeconfig(file string) string {
	s := Default()
	if err := fromFile(file, s); err != nil || s.WriteKubeconfig == "" {
		return Default().WriteKubeconfig
	}
	return s.WriteKubeconfig
}

// AgentDataDir is the data directory of an agent without flags: the path in file (DefaultFile), or the default.
func AgentDataDir(file string) string {
	a := DefaultAgent()
	if err := fromFile(file, a); err != nil || a.DataDir == "" {
		return DefaultAgent().DataDir
	}
	return a.DataDir
}

// fromFile overwrites s with the settings of a file.
func fromFile(path string, s settings) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w: name an existing file with --config", path, fs.ErrNotExist)
	}
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	return decode(path, data, s)
}
