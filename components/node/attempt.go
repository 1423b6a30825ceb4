package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/host/preflight"
	"kubelith.io/kubelith/runtime/payload"
)

// passedTrials is the file in the run directory with preflight.Passed.
const passedTrials = "passed-trials.json"

// attempt is a start that may still be refused. If it is, it removes what it created on this machine: nothing may look
// as if a node had run here, or reset would remove what belongs to another cluster.
type attempt struct{ steps []func() }

// begin remembers which of the node's directories do not exist.
func begin(cfg *config.Node) *attempt {
	a := &attempt{}
	a.onRefusal(forget(cfg.DataDir, cfg.RunDir, cfg.KubeletRootDir))
	return a
}

// onRefusal adds a step; the last one added runs first.
func (a *attempt) onRefusal(step func()) { a.steps = append(a.steps, step) }

func (a *attempt) takeBack() {
	for _, step := range slices.Backward(a.steps) {
		step()
	}
}

// making removes a directory with all its content on refusal, if it does not exist now.
func (a *attempt) making(dir string) {
	if absent(dir) {
		a.onRefusal(func() { os.RemoveAll(dir) })
	}
}

// settle creates the node's directories on a host that can run it, and unpacks the programs. Servers and agents share
// it.
func (h *machine) settle(ctx context.Context, a *attempt, cfg *config.Node, release string, checks preflight.Options) (err error) {
	marks := forget(append(datadir.Files(cfg.DataDir),
		filepath.Join(cfg.RunDir, datadir.RunMark), filepath.Join(cfg.KubeletRootDir, datadir.KubeletMark))...)
	if h.dir, err = datadir.Open(cfg.DataDir, release); err != nil {
		return err
	}
	a.onRefusal(h.Close)
	a.onRefusal(marks)
	passed := filepath.Join(cfg.RunDir, passedTrials)
	a.onRefusal(forget(passed))
	checks.Passed = preflight.ReadPassed(passed)
	h.checks = append(h.checks, preflight.CheckSettled(ctx, checks)...)
	if err := preflight.Failures(h.checks); err != nil {
		return err
	}
	if err := h.hold(cfg); err != nil {
		return err
	}
	_ = checks.Passed.Write() // the next start makes the trials again
	if link := cfg.SocketDir(); link != cfg.RunDir {
		a.onRefusal(forget(link))
		if err := linkTo(link, cfg.RunDir); err != nil {
			return err
		}
	}
	a.making(payload.Dir(cfg.DataDir))
	return h.unpack(cfg)
}

// linkTo creates a symbolic link, or leaves the one there. Its parent directory may be missing since the last boot.
func linkTo(link, dir string) error {
	if target, err := os.Readlink(link); err == nil && target == dir {
		return nil
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(dir, link)); err != nil {
		return fmt.Errorf("cannot create a short name for the sockets in %s (%w): use a shorter --run-dir", dir, err)
	}
	return nil
}

// forget returns a function that removes those of the paths, and of their parent directories, that do not exist now. A
// directory with files of others stays.
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
