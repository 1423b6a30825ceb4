package kubelith

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"filippo.io/age"
	"github.com/urfave/cli/v2"
	"golang.org/x/term"
	"k8s.io/component-base/version"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/components/controlplane/snapshot"
)

func snapshotCommand() *cli.Command {
	passphrase := &cli.StringFlag{Name: "passphrase-file", Usage: "file with the passphrase of an encrypted snapshot (default: that of --snapshot-passphrase-file)"}
	identity := &cli.StringFlag{Name: "identity", Usage: "file with the private key of age for which a snapshot is encrypted"}
	command := func(name, args, usage, description string, action func(*cli.Context, *config.Server) error, flags ...cli.Flag) *cli.Command {
		return &cli.Command{
			Name: name, ArgsUsage: args, Usage: usage, Description: description,
			Flags: append(config.DirFlags("nodeName", "snapshotDir", "snapshotPassphraseFile", "snapshotRecipients"), flags...),
			OnUsageError: func(_ *cli.Context, err error, _ bool) error {
				return fmt.Errorf("%w: see kubelith snapshot %s --help", err, name)
			},
			Action: func(c *cli.Context) error {
				cfg, err := config.Load(c)
				if err != nil {
					return err
				}
				if cfg.SnapshotDir == "" {
					cfg.SnapshotDir = snapshot.Dir(cfg.DataDir)
				}
				return action(c, cfg)
			},
		}
	}
	return &cli.Command{
		Name:            "snapshot",
		Aliases:         []string{"etcd-snapshot"},
		Usage:           "save and restore the cluster",
		HideHelpCommand: true,
		OnUsageError:    usageError,
		Action:          subcommandHelp,
		Subcommands: []*cli.Command{
			command("save", "[NAME|-]", "save the cluster of the running server, and test that it restores",
				"The snapshot is NAME-NODE-TIME.snapshot in the directory of snapshots; - writes it to standard output.\nIt has everything that a new machine needs, the cluster's keys, too: encrypt it before it leaves the machine.", saveSnapshot),
			command("list", "", "list the snapshots in the directory", "", listSnapshots,
				&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "text or json", Value: "text"}),
			command("verify", "NAME|FILE|-", "restore a snapshot to a scratch directory and start etcd on it", "", verifySnapshot, passphrase, identity),
			command("delete", "NAME ...", "delete snapshots in the directory", "", deleteSnapshots),
			command("restore", "NAME|FILE|-", "make the data directory of a server from a snapshot",
				"It is for a machine without a cluster, which may have another name and address. Start kubelith server afterwards.", restoreSnapshot, passphrase, identity),
		},
	}
}

// sourceOf returns the running server's cluster.
func sourceOf(cfg *config.Server) (snapshot.Source, error) {
	settings, err := datadir.ReadSettings(cfg.DataDir)
	if err != nil {
		return snapshot.Source{}, err
	}
	socket := filepath.Join(cfg.SocketDir(), "etcd", "etcd.sock")
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
		return fmt.Errorf("snapshot save takes one name, got %q: flags stand before it", c.Args().Slice())
	}
	source, err := sourceOf(cfg)
	if err != nil {
		return err
	}
	name := c.Args().First()
	if name == "" {
		name = "manual"
	}
	bar := progressOn(c.App.ErrWriter, "saving")
	source.Progress = bar.at
	if name != "-" {
		f, err := snapshot.SaveFile(c.Context, source, cfg.SnapshotDir, name)
		bar.end()
		if err != nil {
			return err
		}
		fmt.Fprintf(c.App.Writer, "%s, %s, restored once to test it%s\n", f.Path, bytesOf(f.Bytes), unencrypted(f.Header))
		return nil
	}
	if out, ok := c.App.Writer.(*os.File); ok && term.IsTerminal(int(out.Fd())) {
		return errors.New("standard output is a terminal: send it to a file or a program")
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

func listSnapshots(c *cli.Context, cfg *config.Server) error {
	if err := noArguments(c); err != nil {
		return err
	}
	all, err := snapshot.List(cfg.SnapshotDir)
	if err != nil {
		return err
	}
	switch out := c.String("output"); out {
	case "json":
		encoder := json.NewEncoder(c.App.Writer)
		encoder.SetIndent("", "  ")
		return encoder.Encode(append([]snapshot.File{}, all...))
	case "text":
	default:
		return fmt.Errorf("-o %s: use text or json", out)
	}
	w := tabwriter.NewWriter(c.App.Writer, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "NAME\tAGE\tSIZE\tKUBERNETES\tENCRYPTED")
	for _, f := range all {
		if f.Fault != "" {
			fmt.Fprintf(w, "%s\t\t%s\t\t%s\n", f.Name(), bytesOf(f.Bytes), f.Fault)
			continue
		}
		encrypted := "no"
		if f.Encryption != "" {
			encrypted = f.Encryption
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", f.Name(), time.Since(f.Created).Round(time.Second), bytesOf(f.Bytes), f.Kubernetes, encrypted)
	}
	return w.Flush()
}

func deleteSnapshots(c *cli.Context, cfg *config.Server) error {
	if !c.Args().Present() {
		return errors.New("snapshot delete needs the names of snapshots: kubelith snapshot list shows them")
	}
	var errs []error
	for _, name := range c.Args().Slice() {
		path, err := existing(cfg, name)
		if err == nil && filepath.Dir(path) != filepath.Clean(cfg.SnapshotDir) {
			err = fmt.Errorf("%s is not in %s: remove it with rm", path, cfg.SnapshotDir)
		}
		if err == nil {
			err = os.Remove(path)
		}
		if err == nil {
			fmt.Fprintf(c.App.Writer, "snapshot %s deleted\n", name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// existing returns the path of a snapshot by its name or path.
func existing(cfg *config.Server, name string) (string, error) {
	for _, path := range []string{filepath.Join(cfg.SnapshotDir, name+snapshot.Suffix), filepath.Join(cfg.SnapshotDir, name), name} {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && (path != name || strings.Contains(name, "/") || strings.HasSuffix(name, snapshot.Suffix)) {
			return filepath.Clean(path), nil
		}
	}
	return "", fmt.Errorf("there is no snapshot %q in %s: kubelith snapshot list shows them; a path of another has a slash", name, cfg.SnapshotDir)
}

// opened is a snapshot to read.
type opened struct {
	io.ReadCloser
	name string
	keys []age.Identity
	bar  *progressBar
}

// openSnapshot opens the one that the arguments name.
func openSnapshot(c *cli.Context, cfg *config.Server, doing string) (*opened, error) {
	if c.NArg() != 1 {
		return nil, fmt.Errorf("snapshot %s needs one snapshot, after its flags: its name, a file, or - for standard input", c.Command.Name)
	}
	passphrase := c.String("passphrase-file")
	if passphrase == "" {
		passphrase = cfg.SnapshotPassphraseFile
	}
	keys, err := snapshot.Identities(passphrase, c.String("identity"))
	if err != nil {
		return nil, err
	}
	o := &opened{name: c.Args().First(), keys: keys, bar: progressOn(c.App.ErrWriter, doing)}
	if o.name == "-" {
		o.name, o.ReadCloser = "the snapshot on standard input", io.NopCloser(c.App.Reader)
		return o, nil
	}
	if o.name, err = existing(cfg, o.name); err != nil {
		return nil, err
	}
	f, err := os.Open(o.name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	o.ReadCloser = &counted{ReadCloser: f, total: info.Size(), bar: o.bar}
	return o, nil
}

func verifySnapshot(c *cli.Context, cfg *config.Server) error {
	in, err := openSnapshot(c, cfg, "verifying")
	if err != nil {
		return err
	}
	defer in.Close()
	scratch, err := os.MkdirTemp("", "kubelith-verify-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	v, err := snapshot.Verify(c.Context, in, in.keys, scratch)
	in.bar.end()
	if err != nil {
		return fmt.Errorf("%s: %w", in.name, err)
	}
	fmt.Fprintf(c.App.Writer, "%s: good, %d objects, of %s%s\n", in.name, v.Keys, v.Header, unencrypted(v.Header))
	return nil
}

func restoreSnapshot(c *cli.Context, cfg *config.Server) error {
	in, err := openSnapshot(c, cfg, "restoring")
	if err != nil {
		return err
	}
	defer in.Close()
	restored, err := snapshot.Restore(c.Context, in, in.keys, snapshot.Target{
		DataDir: cfg.DataDir, NodeName: cfg.NodeName, Socket: filepath.Join(cfg.SocketDir(), "etcd", "etcd.sock"), ConfigFile: cfg.File,
		Kubelith: Version, Kubernetes: version.Get().GitVersion,
	})
	in.bar.end()
	if err != nil {
		return fmt.Errorf("%s: %w", in.name, err)
	}
	out := c.App.Writer
	fmt.Fprintf(out, "restored %d objects, of %s\n", restored.Keys, restored.Header)
	if former := restored.Settings.NodeName; former != cfg.NodeName {
		fmt.Fprintf(out, "the node %s is removed: its pods are started elsewhere, and this server is the node %s\n", former, cfg.NodeName)
	}
	switch {
	case restored.ConfigWritten && len(restored.LeftOut) > 0:
		fmt.Fprintf(out, "%s is written, without %s, which were the former machine's\n", cfg.File, strings.Join(restored.LeftOut, ", "))
	case restored.ConfigWritten:
		fmt.Fprintf(out, "%s is written\n", cfg.File)
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

// progressBar shows on a terminal how much of a file is done. Elsewhere it shows nothing.
type progressBar struct {
	out   io.Writer
	doing string
	shown time.Time
}

func progressOn(out io.Writer, doing string) *progressBar {
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &progressBar{out: out, doing: doing}
	}
	return &progressBar{}
}

func (b *progressBar) at(done, total int64) {
	const width = 40
	if b.out == nil || total <= 0 || time.Since(b.shown) < 100*time.Millisecond && done < total {
		return
	}
	b.shown = time.Now()
	filled := int(min(done, total) * width / total)
	fmt.Fprintf(b.out, "\r%s [%s%s] %s of %s ", b.doing, strings.Repeat("#", filled), strings.Repeat(" ", width-filled), bytesOf(done), bytesOf(total))
}

// end removes the line.
func (b *progressBar) end() {
	if b.out != nil {
		fmt.Fprint(b.out, "\r\x1b[K")
	}
}

// counted reports what is read.
type counted struct {
	io.ReadCloser
	done, total int64
	bar         *progressBar
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.done += int64(n)
	c.bar.at(c.done, c.total)
	return n, err
}

func bytesOf(n int64) string {
	if n < 10<<20 {
		return fmt.Sprintf("%d KiB", (n+1023)>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
