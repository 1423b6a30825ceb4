package podlink

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/invoke"
	current "github.com/containernetworking/cni/pkg/types/100"

	"kubelith.io/kubelith/runtime/payload"
)

// openPorts forwards ports of the host to the pod, by upstream's program.
func (s *Server) openPorts(ctx context.Context, c *call, n *network, result *current.Result) error {
	config, err := s.portmapConfig(n, result)
	if err != nil {
		return err
	}
	if _, err = invoke.ExecPluginWithResult(ctx, s.portmap(), config, c.invocation("ADD"), nil); err != nil {
		return fmt.Errorf("open the pod's host ports: %w", err)
	}
	return nil
}

// closePorts undoes openPorts.
func (s *Server) closePorts(ctx context.Context, c *call, n *network) error {
	config, err := s.portmapConfig(n, nil)
	if err != nil {
		return err
	}
	if err := invoke.ExecPluginWithoutResult(ctx, s.portmap(), config, c.invocation("DEL"), nil); err != nil {
		return fmt.Errorf("close the pod's host ports: %w", err)
	}
	return nil
}

// checkPorts returns an error if ports that openPorts opened are closed.
func (s *Server) checkPorts(ctx context.Context, c *call, n *network, result *current.Result) error {
	config, err := s.portmapConfig(n, result)
	if err != nil {
		return err
	}
	return invoke.ExecPluginWithoutResult(ctx, s.portmap(), config, c.invocation("CHECK"), nil)
}

func (s *Server) portmap() string { return filepath.Join(s.opts.BinDir, payload.Portmap) }

// portmapConfig returns the configuration of portmap; result is that of the pod's ADD, nil for DEL.
func (s *Server) portmapConfig(n *network, result *current.Result) ([]byte, error) {
	config := map[string]any{
		"cniVersion":    n.CNIVersion,
		"name":          n.Name,
		"type":          payload.Portmap,
		"backend":       "nftables",
		"runtimeConfig": n.RuntimeConfig,
	}
	if result != nil {
		previous, err := result.GetAsVersion(n.CNIVersion)
		if err != nil {
			return nil, err
		}
		config["prevResult"] = previous
	}
	return json.Marshal(config)
}

func (c *call) invocation(command string) *invoke.Args {
	return &invoke.Args{Command: command, ContainerID: c.container, NetNS: c.netns, IfName: c.ifName, PluginArgsStr: c.args, Path: c.path}
}
