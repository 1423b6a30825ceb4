package podlink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"

	"kubelith.io/kubelith/base/netevents"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/runtime/payload"
)

const (
	// portTable is portmap's, of each family.
	//
	// Source: tableName in containernetworking/plugins, plugins/meta/portmap.
	portTable = "cni_hostport"
	// settle is how long the table is left to the program that has removed it, which may remove more.
	settle = 200 * time.Millisecond
	// retry is the time between attempts after a failure.
	retry = 10 * time.Second
)

// keepPorts opens ports of the host again that another program has closed, until ctx ends: `systemctl restart
// nftables` removes all tables. At the start it looks for those that were closed before.
func (s *Server) keepPorts(ctx context.Context) {
	removed := reconcile.NewSignal()
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() {
		if err := netevents.TableRemovals(ctx, portTable, removed.Send); err != nil {
			s.opts.Log.WithError(err).Warn("cannot watch nftables: ports of the host that another program closes stay closed until a restart")
		}
	})
	reconcile.Loop(ctx, removed, settle, func() time.Duration {
		if err := s.reopenPorts(ctx); err != nil && ctx.Err() == nil {
			s.opts.Log.WithError(err).Errorf("cannot open ports of the host again, retrying in %s", retry)
			return retry
		}
		return 0
	})
}

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
		if a.CapabilityArgs["portMappings"] == nil {
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
	ctx, cancel := context.WithTimeout(ctx, workTimeout)
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
	s.opts.Log.Warnf("another program has closed ports of the host: opened those of pod %s/%s again", pod["K8S_POD_NAMESPACE"], pod["K8S_POD_NAME"])
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
