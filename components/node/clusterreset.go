package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/components/controlplane/etcd"
	"kubelith.io/kubelith/components/controlplane/servers"
)

// ResetCluster makes this server, which must not run, the only member of its cluster, with the data that it has. The
// others come back by themselves when they are started, with their data moved aside. Unless it is forced, it refuses
// while one of the others answers with a majority: what that has stored since would be moved aside, too.
func ResetCluster(ctx context.Context, cfg *config.Server, release string, forced bool, out io.Writer) error {
	stored, err := servers.Load(cfg.DataDir)
	if err != nil {
		return err
	}
	if cfg.Witness || stored != nil && stored.Witness {
		return errors.New("a witness cannot be the only member of a cluster, as it has no keys: " +
			"run kubelith server --cluster-reset on a server")
	}
	if stored == nil {
		return fmt.Errorf("the server of %s is the only one: start it without --cluster-reset", cfg.DataDir)
	}
	if !etcd.Begun(filepath.Join(cfg.DataDir, datadir.Etcd)) || stored.Removed {
		return fmt.Errorf("%s has no data of the cluster: run kubelith server --cluster-reset on a server that has it", cfg.DataDir)
	}
	if len(stored.Settings) > 0 {
		if err := adopt(cfg, stored.Settings); err != nil {
			return err
		}
	}
	if err := datadir.CheckSettings(cfg.DataDir, fixedSettings(cfg)); err != nil {
		return err
	}
	dir, err := datadir.Open(cfg.DataDir, release)
	if err != nil {
		return err
	}
	defer dir.Close()
	h := &machine{dir: dir}
	if err := h.credentials(cfg); err != nil {
		return err
	}
	err = servers.Reset(ctx, servers.ResetOptions{
		NodeName: cfg.NodeName,
		DataDir:  cfg.DataDir,
		Socket:   cfg.EtcdSocket(),
		Peer:     h.peer(cfg),
		Forced:   forced,
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "this server is the only one of its cluster: start it, then the others, which come back by themselves\n")
	return err
}
