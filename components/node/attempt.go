package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/datadir"
	"kubelith.io/kubelith/components/host"
	"kubelith.io/kubelith/runtime/payload"
)

// attempt is a start that may still be refused. It takes back what it has made on this machine then: nothing may look afterwards as
// if a node had run here, or reset would remove what is another cluster's.
type attempt struct{ steps []func() }

// begin remembers which of the node's directories are not there.
func begin(cfg *config.Node) *attempt {
	a := &attempt{}
	a.onRefusal(forget(cfg.DataDir, cfg.RunDir, cfg.KubeletRootDir))
	return a
}

// onRefusal adds a step; the latest is done first.
func (a *attempt) onRefusal(step func()) { a.steps = append(a.steps, step) }

func (a *attempt) takeBack() {
	for _, step := range slices.Backward(a.steps) {
		step()
	}
}

// making takes back a directory with all that is in it, if it is not there now.
func (a *attempt) making(dir string) {
	if absent(dir) {
		a.onRefusal(func() { os.RemoveAll(dir) })
	}
}

// settle takes the node's directories on a host that can run it, and unpacks the programs: what servers and agents do alike.
func (h *machine) settle(ctx context.Context, a *attempt, cfg *config.Node, release string, checks host.CheckOptions) (err error) {
	marks := forget(append(datadir.Files(cfg.DataDir), filepath.Join(cfg.RunDir, datadir.RunMark), filepath.Join(cfg.KubeletRootDir, datadir.KubeletMark))...)
	if h.dir, err = datadir.Open(cfg.DataDir, release); err != nil {
		return err
	}
	a.onRefusal(h.Close)
	a.onRefusal(marks)
	h.checks = append(h.checks, settledPreflight(ctx, checks)...)
	if err := host.Failures(h.checks); err != nil {
		return err
	}
	if err := h.hold(cfg); err != nil {
		return err
	}
	if link := cfg.SocketDir(); link != cfg.RunDir {
		a.onRefusal(forget(link))
		if err := linkTo(link, cfg.RunDir); err != nil {
			return err
		}
	}
	a.making(payload.Dir(cfg.DataDir))
	return h.unpack(cfg)
}

// linkTo makes a symbolic link, or leaves it. The way to it may be new since the last boot.
func linkTo(link, dir string) error {
	if target, err := os.Readlink(link); err == nil && target == dir {
		return nil
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(dir, link)); err != nil {
		return fmt.Errorf("a short name for the sockets in %s cannot be made (%w): give a shorter --run-dir", dir, err)
	}
	return nil
}

// forget returns what removes those of the paths, and of the directories above them, that are not there now. What somebody
// has put into such a directory stays.
func forget(paths ...string) func() {
	var missing []string
	for _, path := range paths {
		for ; absent(path); path = filepath.Dir(path) {
			missing = append(missing, path)
		}
	}
	slices.SortFunc(missing, func(a, b string) int { return len(b) - len(a) }) // what is inside first
	return func() {
		for _, path := range missing {
			os.Remove(path)
		}
	}
}

func absent(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}
