package kubelith

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"
	"k8s.io/component-base/version"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/components/controlplane/snapshot"
)

func snapshotCommand() *cli.Command {
	passphrase := &cli.StringFlag{
		Name:  "passphrase-file",
		Usage: "file with the passphrase of an encrypted snapshot (default: that of --snapshot-passphrase-file)",
	}
	identity := &cli.StringFlag{Name: "identity", Usage: "file with the age private key that decrypts the snapshot"}
	command := func(name, args, usage, description string, action func(*cli.Context, *config.Server) error, flags ...cli.Flag) *cli.Command {
		return &cli.Command{
			Name: name, ArgsUsage: args, Usage: usage, Description: description,
			Flags:        append(config.SnapshotFlags(), flags...),
			OnUsageError: usageError,
			Action: func(c *cli.Context) error {
				cfg, err := config.Load(c)
				if err != nil {
					return err
				}
				if err := cfg.S3.Validate(); err != nil {
					return err
				}
				if cfg.SnapshotDir == "" {
					cfg.SnapshotDir = snapshot.Dir(cfg.DataDir)
				}
				return action(c, cfg)
			},
		}
	}
	list := command("list", "", "list the snapshots in the directory and the store", "", listSnapshots, outputFlag("json"))
	list.Aliases = []string{"ls"} // k3s' name
	snapshots := group("snapshot", "save and restore the cluster",
		command("save", "[NAME|-]", "save the cluster of the running server, and test that it restores",
			"The snapshot is NAME-NODE-TIME.snapshot in the directory of snapshots and, with --snapshot-s3-bucket, in the store; "+
				"- writes it to standard output.\n"+
				"It has everything that a new machine needs, including the cluster's keys: encrypt it before it leaves the machine.",
			saveSnapshot),
		list,
		command("verify", "NAME|FILE|-", "restore a snapshot to a scratch directory and start etcd on it",
			whereFound, verifySnapshot, passphrase, identity),
		command("prune", "", "delete the scheduled snapshots of this server in excess of --snapshot-retention",
			"It keeps the newest, in the directory and in the store, and all that were saved by hand. "+
				"The server does the same after each scheduled snapshot.",
			pruneSnapshots),
		command("delete", "NAME ...", "delete snapshots in the directory and the store", "s3:NAME is deleted in the store only.", deleteSnapshots),
		command("restore", "NAME|FILE|-", "create the data directory of a server from a snapshot",
			whereFound+"\nRun it on a machine without a cluster; its name and address may differ. "+
				"Start kubelith server afterwards.",
			restoreSnapshot, passphrase, identity))
	snapshots.Aliases = []string{"etcd-snapshot"}
	return snapshots
}

// whereFound explains names.
const whereFound = "A NAME that is not in the snapshot directory is read from the bucket of --snapshot-s3-bucket; " +
	"s3:NAME always comes from there."

// sourceOf returns the running server's cluster.
func sourceOf(cfg *config.Server) (snapshot.Source, error) {
	settings, err := datadir.ReadSettings(cfg.DataDir)
	if err != nil {
		return snapshot.Source{}, err
	}
	return sourceWith(cfg, settings)
}

func sourceWith(cfg *config.Server, settings datadir.Settings) (snapshot.Source, error) {
	socket := cfg.EtcdSocket()
	if _, err := os.Stat(socket); err != nil {
		return snapshot.Source{}, fmt.Errorf("no server runs on %s (%w): start it, or give its --data-dir and --run-dir", cfg.DataDir, err)
	}
	ips := cfg.NodeIP
	if len(ips) == 0 {
		ips, _ = config.DetectNodeIPs(settings.ClusterCIDR) // for information only
	}
	return snapshot.Source{
		DataDir: cfg.DataDir, Socket: socket, ConfigFile: cfg.File, Settings: settings, NodeIPs: ips,
		Kubelith: Version, Kubernetes: version.Get().GitVersion,
		Keys: snapshot.Keys{PassphraseFile: cfg.SnapshotPassphraseFile, Recipients: cfg.SnapshotRecipients},
	}, nil
}

func saveSnapshot(c *cli.Context, cfg *config.Server) error {
	if c.NArg() > 1 {
		return fmt.Errorf("snapshot save takes one name, got %q: put flags before it", c.Args().Slice())
	}
	source, err := sourceOf(cfg)
	if err != nil {
		return err
	}
	name := c.Args().First()
	if name == "" {
		name = "manual"
	}
	bar := progressOn(c.App.ErrWriter)
	source.Progress = bar.at
	if name != "-" {
		return saveFile(c, cfg, source, name, bar)
	}
	if terminal(c.App.Writer) != nil {
		return errors.New("standard output is a terminal: redirect it to a file or a program")
	}
	// It is tested before its first byte is sent.
	if err := os.MkdirAll(cfg.SnapshotDir, 0o700); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(cfg.SnapshotDir, snapshot.Unfinished)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	f, err := snapshot.SaveFile(c.Context, source, dir, "stream")
	bar.end()
	if err != nil {
		return err
	}
	if hint := unencrypted(f.Header); hint != "" {
		fmt.Fprintln(c.App.ErrWriter, "warning: the snapshot is sent"+hint)
	}
	content, err := os.Open(f.Path)
	if err != nil {
		return err
	}
	defer content.Close()
	_, err = io.Copy(c.App.Writer, content)
	return err
}

// unencrypted is a hint about who must not get a snapshot.
func unencrypted(h snapshot.Header) string {
	if h.Encryption != "" {
		return ""
	}
	return "; it is not encrypted, and has the cluster's keys"
}

func verifySnapshot(c *cli.Context, cfg *config.Server) error {
	name, err := oneSnapshot(c)
	if err != nil {
		return err
	}
	in, err := openSnapshot(c, cfg, name, "verifying")
	if err != nil {
		return err
	}
	defer in.Close()
	scratch, err := scratchDir(cfg.SnapshotDir)
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	v, err := snapshot.Verify(c.Context, in, in.keys, scratch)
	in.bar.end()
	if err != nil {
		return in.explain(err)
	}
	fmt.Fprintf(c.App.Writer, "%s: good, %d objects, of %s%s\n", in.name, v.Keys, v.Header, unencrypted(v.Header))
	return nil
}

// scratchDir creates a directory for a database: among the snapshots, if there are any, else on a disk, which /tmp may
// not be.
func scratchDir(snapshots string) (string, error) {
	for _, parent := range []string{snapshots, cmp.Or(os.Getenv("TMPDIR"), "/var/tmp")} {
		if dir, err := os.MkdirTemp(parent, snapshot.Unfinished); err == nil {
			return dir, nil
		}
	}
	return os.MkdirTemp("", snapshot.Unfinished)
}

func restoreSnapshot(c *cli.Context, cfg *config.Server) error {
	name, err := oneSnapshot(c)
	if err != nil {
		return err
	}
	return restoreNamed(c, cfg, name)
}

// restoreNamed restores a snapshot by its name, its path, or as -.
func restoreNamed(c *cli.Context, cfg *config.Server, name string) error {
	in, err := openSnapshot(c, cfg, name, "restoring")
	if err != nil {
		return err
	}
	defer in.Close()
	restored, err := snapshot.Restore(c.Context, in, in.keys, snapshot.Target{
		DataDir: cfg.DataDir, NodeName: cfg.NodeName, Socket: cfg.EtcdSocket(), ConfigFile: cfg.File,
		Kubelith: Version, Kubernetes: version.Get().GitVersion,
	})
	in.bar.end()
	if err != nil {
		return in.explain(err)
	}
	out := c.App.Writer
	fmt.Fprintf(out, "restored %d objects, of %s\n", restored.Keys, restored.Header)
	if former := restored.Settings.NodeName; former != cfg.NodeName {
		fmt.Fprintf(out, "the node %s is removed: its pods are started elsewhere, and this server is the node %s\n", former, cfg.NodeName)
	}
	switch {
	case restored.ConfigWritten && len(restored.LeftOut) > 0:
		fmt.Fprintf(out, "wrote %s without %s, which belonged to the former machine\n", cfg.File, strings.Join(restored.LeftOut, ", "))
	case restored.ConfigWritten:
		fmt.Fprintf(out, "wrote %s\n", cfg.File)
	}
	if restored.ConfigWritten {
		if written, _, err := config.Reload(cfg.File, nil); err != nil {
			fmt.Fprintf(out, "warning: %s does not suit this release: %v\n", cfg.File, err)
		} else if missing := written.MissingFiles(); len(missing) > 0 {
			fmt.Fprintf(out, "the configuration names files that are missing here: copy them, or remove those settings: %s\n", strings.Join(missing, ", "))
		}
	}
	if len(restored.Kept) > 0 {
		fmt.Fprintf(out, "these existed and stay as they are: %s\n", strings.Join(restored.Kept, ", "))
	}
	if len(restored.Plugins) > 0 {
		fmt.Fprintf(out, "the snapshot has no plugins: copy these to %s: %s\n", filepath.Join(cfg.DataDir, "plugins"), strings.Join(restored.Plugins, ", "))
	}
	fmt.Fprintln(out, "start the cluster with kubelith server")
	return nil
}
