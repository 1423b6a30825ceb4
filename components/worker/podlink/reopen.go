package podlink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"

	"kubelith.io/kubelith/runtime/payload"
)

// portTable is portmap's, of each family. `systemctl restart nftables` removes it with all others.
//
// Source: tableName in containernetworking/plugins, plugins/meta/portmap.
const portTable = "cni_hostport"

// reopenPorts opens the ports of connected pods that are not open. libcni knows the pods and their ports: it keeps each
// ADD until its DEL.
func (s *Server) reopenPorts(ctx context.Context) error {
	cache := libcni.NewCNIConfigWithCacheDir(nil, s.opts.CacheDir, nil)
	attachments, err := cache.GetCachedAttachments("")
	if err != nil {
		return err
	}
	var problems []error
	for _, a := range attachments {
		if a.CapabilityArgs["portMappings"] == nil || ctx.Err() != nil {
			continue
		}
		if err := s.reopen(ctx, cache, a); err != nil {
			problems = append(problems, fmt.Errorf("sandbox %s: %w", a.ContainerID, err))
		}
	}
	return errors.Join(problems...)
}

// reopen does nothing for a pod of another network, and for one that is gone.
func (s *Server) reopen(ctx context.Context, cache *libcni.CNIConfig, a *libcni.NetworkAttachment) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), workTimeout) // all or nothing of a pod's
	defer cancel()
	c, n, err := s.attached(a)
	if err != nil || n == nil {
		return err
	}
	s.ports.Lock() // no DEL goes on
	defer s.ports.Unlock()
	if s.has(c, n) != nil {
		return nil
	}
	result, err := cache.GetNetworkCachedResult(&libcni.PluginConfig{Network: &n.PluginConf},
		&libcni.RuntimeConf{ContainerID: a.ContainerID, IfName: a.IfName, CacheDir: s.opts.CacheDir})
	if err != nil || result == nil { // its DEL has ended
		return err
	}
	now, err := current.NewResultFromResult(result)
	if err != nil || s.checkPorts(ctx, c, n, now) == nil {
		return err
	}
	if err := s.closePorts(ctx, c, n); err != nil { // some may be open
		return err
	}
	if err := s.openPorts(ctx, c, n, now); err != nil {
		return err
	}
	pod := c.arguments()
	s.opts.Log.Warnf("another program has closed host ports: opened those of pod %s/%s again", pod["K8S_POD_NAMESPACE"], pod["K8S_POD_NAME"])
	return nil
}

// attached returns the call that connected a pod; no network for a pod that this component has not connected, or whose
// network namespace is gone, as after a reboot.
func (s *Server) attached(a *libcni.NetworkAttachment) (*call, *network, error) {
	if _, err := os.Stat(a.NetNS); err != nil {
		return nil, nil, nil
	}
	list, err := libcni.NetworkConfFromBytes(a.Config)
	if err != nil {
		return nil, nil, err
	}
	for _, plugin := range list.Plugins {
		if plugin.Network.Type != payload.CNI {
			continue
		}
		var args []string
		for _, arg := range a.CniArgs {
			args = append(args, arg[0]+"="+arg[1])
		}
		c := &call{container: a.ContainerID, netns: a.NetNS, ifName: a.IfName, args: strings.Join(args, ";"), path: s.opts.BinDir}
		config := map[string]any{}
		if err := json.Unmarshal(plugin.Bytes, &config); err != nil {
			return nil, nil, err
		}
		config["name"], config["cniVersion"], config["runtimeConfig"] = list.Name, list.CNIVersion, a.CapabilityArgs
		if c.config, err = json.Marshal(config); err != nil {
			return nil, nil, err
		}
		n, err := readNetwork(c.config, c.args)
		return c, n, err
	}
	return nil, nil, nil
}
