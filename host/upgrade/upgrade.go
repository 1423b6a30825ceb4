// Package upgrade replaces the program of a node's service by another version of Kubelith. When that does not become
// ready, the program and the data of before come back.
//
//	prepare   the file is verified, checks pass, a snapshot is saved     nothing has changed
//	stopping  the service is stopped, its data copied
//	trying    the program is replaced, the service started
//	  ready:  the upgrade is complete; the former program stays as PROGRAM.previous
//	  else
//	returning the program and the data are put back, the service is started
//
// The phase is stored before it begins (state.go): an upgrade that was killed goes on when Run is called again. Pods
// are not touched: they outlive the service.
//
// The package knows files, processes and service managers. What it means that a node is ready, or may be upgraded, and
// how etcd's data is made usable again, is in Options.
package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/atomicfile"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/oneline"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/host"
	"kubelith.io/kubelith/host/preflight"
)

// Options describe an upgrade.
type Options struct {
	// File is the new program, and Proof what it is verified with.
	File  string
	Proof Proof
	// DataDir is the node's data directory, and Data returns the names in it that come back with the former program;
	// the service runs.
	DataDir string
	Data    func(context.Context) ([]string, error)
	Service Service
	// Within is how long the service may take to become ready.
	Within time.Duration
	// Ready returns why the node of the program, which runs, is not ready. since is when it was started.
	Ready func(ctx context.Context, p Program, since time.Time) error
	// Adopted returns the release with which the node was ready last.
	Adopted func() (string, error)
	// Check returns why this node must not change from one program to the other; the service runs.
	Check func(ctx context.Context, from, to Program) error
	// Save saves a snapshot of the cluster, and returns its path, which is empty if the former release does not have
	// all that a snapshot needs; nil where there is nothing to save.
	Save func(ctx context.Context, p Program) (string, error)
	// Renew creates the data of etcd in the directory to from that in the directory from, so that no client takes what
	// the new program has written for current.
	Renew func(ctx context.Context, from, to string) error
	// Out gets a line for each step.
	Out io.Writer

	// Of tests, whose programs are not Kubelith's.
	recognize func(file string) error
	every     time.Duration
}

const (
	// tooOften is how often the new program may end before it is given up.
	tooOften = 5
	// lookEvery is the time between two checks of a service that starts.
	lookEvery = 500 * time.Millisecond
)

// Run upgrades the service, or finishes an upgrade that was interrupted. Its error is one line. When the new program
// did not become ready the former one runs again, and the error says why.
func Run(ctx context.Context, o Options) error {
	file, err := filepath.Abs(o.File)
	if err != nil {
		return err
	}
	o.File = file
	if o.recognize == nil {
		o.recognize = recognize
	}
	if o.every == 0 {
		o.every = lookEvery
	}
	lock, err := takeLock(o.DataDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	s, err := load(o.DataDir)
	if err != nil {
		return err
	}
	if s == nil {
		return o.begin(ctx)
	}
	if o.becameReady(s) {
		o.say("an upgrade to %s was interrupted, and the node has been ready since: its data stays", s.New)
		if err := forget(o.DataDir); err != nil {
			return err
		}
		return o.begin(ctx)
	}
	if err := o.sameFile(s); err != nil {
		return err
	}
	if err := s.handOver(); err != nil {
		return err
	}
	switch s.Phase {
	case trying:
		if sameFiles(s.Installed, previous(s.Installed)) {
			break // it is the old program, which may have run, and written, since: the copy of the data is old
		}
		o.say("an upgrade to %s was interrupted: resuming it", s.New)
		return o.try(ctx, s)
	case returning:
		o.say("the rollback from %s to %s was interrupted: rolling back again", s.New, s.Old)
		return o.back(ctx, s)
	}
	o.say("an upgrade was interrupted before it replaced anything: starting over")
	if err := o.undo(ctx, s); err != nil {
		return err
	}
	return o.begin(ctx)
}

// becameReady reports whether the node has been ready with another program since the upgrade was interrupted: with the
// new one, or with one that was installed by hand. What clients have written since, for seconds or for weeks, is worth
// more than the copy of the data.
func (o Options) becameReady(s *state) bool {
	if s.Phase != trying || s.Adopted == "" {
		return false
	}
	release, err := o.Adopted()
	return err == nil && release != s.Adopted
}

// takeLock takes the data directory for one upgrade at a time. The kernel frees it however the process ends.
func takeLock(dataDir string) (*os.File, error) {
	f, err := os.Open(dataDir)
	if err != nil {
		return nil, fmt.Errorf("no node runs on %s (%w): start it, or give its --data-dir", dataDir, err)
	}
	if err := lock(f, dataDir); err != nil {
		return nil, err
	}
	return f, nil
}

// sameFile refuses another file than that of the interrupted upgrade.
func (o Options) sameFile(s *state) error {
	if o.File == s.File {
		return nil
	}
	if checksum, err := sum(o.File); err == nil && checksum == s.New.SHA256 {
		return nil
	}
	return fmt.Errorf("an upgrade to %s was interrupted: finish it first with kubelith upgrade %s", s.New, s.File)
}

// handOver replaces this process, if the new program runs it, by the old program: that one is known to work.
func (s *state) handOver() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if !s.HandOver || !sameFiles(self, s.Installed) || sameFiles(self, previous(s.Installed)) {
		return nil
	}
	if _, err := os.Stat(previous(s.Installed)); err != nil {
		return nil
	}
	return syscall.Exec(previous(s.Installed), append([]string{previous(s.Installed)}, os.Args[1:]...), os.Environ())
}

func sameFiles(a, b string) bool {
	x, err1 := os.Stat(a)
	y, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

// staged and previous are the new program before, and the old one after it was replaced.
func staged(installed string) string   { return installed + ".new" }
func previous(installed string) string { return installed + ".previous" }

// begin does everything that changes nothing, and then goes on.
func (o Options) begin(ctx context.Context) (err error) {
	installed := o.Service.Command()[0]
	if installed, err = filepath.EvalSymlinks(installed); err != nil {
		return fmt.Errorf("the program of %s: %w", o.Service.Name(), err)
	}
	if err := o.recognize(o.File); err != nil {
		return err
	}
	s := &state{Phase: stopping, File: o.File, Installed: installed}
	if s.Old, err = ask(ctx, installed); err != nil {
		return err
	}
	if err := o.runs(installed); err != nil {
		return fmt.Errorf("%w: start %s and wait until it is ready", err, o.Service.Name())
	}
	if s.Data, err = o.Data(ctx); err != nil {
		return err
	}
	if err := o.enoughSpace(s); err != nil {
		return err
	}
	checksum, err := o.Proof.stage(o.File, staged(installed))
	if err != nil {
		return err
	}
	kept := false
	defer func() {
		if !kept {
			os.Remove(staged(installed))
		}
	}()
	if checksum == s.Old.SHA256 {
		o.say("%s is running %s already: nothing to do", o.Service.Name(), s.Old)
		return nil
	}
	if err := o.recognize(staged(installed)); err != nil { // of the file as it was copied
		return err
	}
	if s.New, err = ask(ctx, staged(installed)); err != nil {
		return err
	}
	if err := o.mayBegin(ctx, s); err != nil {
		return err
	}
	if !o.Proof.given() {
		o.say("warning: %s is not verified: give --sha256 or --sig", o.File)
	}
	o.say("upgrading %s from %s to %s", o.Service.Name(), s.Old, s.New)
	if o.Save != nil {
		if s.Snapshot, err = o.Save(ctx, s.Old); err != nil {
			return fmt.Errorf("cannot save a snapshot, so nothing is upgraded: %w", err)
		}
		if s.Snapshot == "" {
			o.say("%s cannot save snapshots: a copy of its data is kept until the upgrade is complete", s.Old)
		} else {
			o.say("saved the snapshot %s", s.Snapshot)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	s.HandOver = sameFiles(self, installed)
	s.Adopted, _ = o.Adopted() // a release that does not store it leaves it empty
	if err := s.save(o.DataDir); err != nil {
		return err
	}
	kept = true
	if s.Snapshot != "" { // the new program need not save one
		if err := atomicfile.Write(filepath.Join(o.DataDir, datadir.Saved), []byte(s.Snapshot+"\n")); err != nil {
			return errors.Join(err, forget(o.DataDir), os.Remove(staged(installed)))
		}
	}
	return o.replace(ctx, s)
}

// mayBegin returns why the node must not be upgraded, or not now.
func (o Options) mayBegin(ctx context.Context, s *state) error {
	if err := CheckSkew(s.Old, s.New); err != nil {
		return err
	}
	if err := o.Check(ctx, s.Old, s.New); err != nil {
		return err
	}
	return o.newProgramsCheck(ctx, staged(s.Installed))
}

// newProgramsCheck runs `check` of the new program, with the service's flags.
func (o Options) newProgramsCheck(ctx context.Context, program string) error {
	role, flags := o.Service.Command()[1], o.Service.Command()[2:]
	args := []string{"check"}
	if role == "agent" {
		args = append(args, role)
	}
	text, err := exec.CommandContext(ctx, program, append(args, flags...)...).Output()
	if err == nil {
		return nil
	}
	var failed []string
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, string(preflight.Fail)); found {
			failed = append(failed, strings.TrimSpace(rest))
		}
	}
	if len(failed) == 0 {
		failed = []string{err.Error()}
	}
	return fmt.Errorf("the new program cannot run here: %s", strings.Join(failed, "; "))
}

// enoughSpace refuses to fill a disk: the program, its unpacked payload, which is smaller, and the copy of the data. To
// go back takes more, when there is no other way than back: Renew copies the database, and fills a new one.
func (o Options) enoughSpace(s *state) error {
	program, err := os.Stat(o.File)
	if err != nil {
		return err
	}
	data, err := bytesOf(o.DataDir, s.Data)
	if err != nil {
		return err
	}
	if slices.Contains(s.Data, datadir.Etcd) {
		database, err := bytesOf(o.DataDir, []string{datadir.Etcd})
		if err != nil {
			return err
		}
		data += 2*database + renewing
	}
	return enough(unix.Statfs, []need{
		{filepath.Dir(s.Installed), uint64(program.Size()) + margin},
		{o.DataDir, uint64(program.Size()) + data + margin},
	})
}

const (
	// margin is what stays free, bytes.
	margin = 64 << 20
	// renewing is what Renew takes besides the databases, bytes: two segments of etcd's log, and one that it allocates
	// beforehand.
	renewing = 3 * 64 << 20
)

// need is how many bytes a directory takes.
type need struct {
	dir   string
	bytes uint64
}

// enough returns an error if a file system has less space than its directories take together.
func enough(statfs func(string, *unix.Statfs_t) error, needs []need) error {
	taken := map[unix.Fsid]uint64{}
	for _, n := range needs {
		var disk unix.Statfs_t
		if err := statfs(n.dir, &disk); err != nil {
			return fmt.Errorf("%s: %w", n.dir, err)
		}
		taken[disk.Fsid] += n.bytes
		if free := disk.Bavail * uint64(disk.Bsize); free < taken[disk.Fsid] {
			return fmt.Errorf("%s has %d MiB free, and the upgrade takes %d: free space", n.dir, free>>20, taken[disk.Fsid]>>20)
		}
	}
	return nil
}

// replace stops the service and copies its data. An error before the new program is tried leaves the old one running.
func (o Options) replace(ctx context.Context, s *state) error {
	err := o.stopAndCopy(ctx, s)
	if err != nil {
		return errors.Join(fmt.Errorf("nothing is upgraded: %w", err), o.undo(context.WithoutCancel(ctx), s))
	}
	return o.try(ctx, s)
}

func (o Options) stopAndCopy(ctx context.Context, s *state) (err error) {
	o.say("stopping %s; pods keep running", o.Service.Name())
	if err := o.Service.Stop(ctx); err != nil {
		return err
	}
	if err := o.unused(); err != nil {
		return err
	}
	if s.Copied, err = copyData(o.DataDir, s.Data); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := link(s.Installed, previous(s.Installed)); err != nil {
		return err
	}
	s.Phase, s.Began = trying, time.Now()
	return s.save(o.DataDir)
}

// settle is how long a program that an ended process was just starting may keep the lock of the data directory.
const settle = 5 * time.Second

// unused returns an error if a process uses the data directory of the stopped service.
func (o Options) unused() error {
	for deadline := time.Now().Add(settle); ; time.Sleep(settle / 100) {
		pid := (host.Tree{}).RunningServer(o.DataDir)
		if pid == "" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is stopped, and process %s still uses %s: end it first", o.Service.Name(), pid, o.DataDir)
		}
	}
}

// undo ends an upgrade that has replaced nothing, and waits for the old program.
func (o Options) undo(ctx context.Context, s *state) error {
	began := time.Now()
	if err := o.Service.Start(ctx); err != nil {
		return err
	}
	if err := forget(o.DataDir); err != nil {
		return err
	}
	if err := os.Remove(staged(s.Installed)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := o.await(ctx, s.Installed, s.Old, began); err != nil {
		return fmt.Errorf("%s is started again, and is not ready yet: %w", o.Service.Name(), err)
	}
	return nil
}

// link gives a file one more name, also where that exists.
func link(file, name string) error {
	if err := os.Remove(name + ".tmp"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(file, name+".tmp"); err != nil {
		return err
	}
	// A rename of one name of a file to another of the same would do nothing.
	if sameFiles(file, name) {
		return os.Remove(name + ".tmp")
	}
	if err := os.Rename(name+".tmp", name); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(name))
}

// try starts the new program and waits until it is ready.
func (o Options) try(ctx context.Context, s *state) error {
	err := o.start(ctx, s)
	if err == nil {
		o.say("waiting until %s is ready, at most %s", s.New, o.Within)
		err = o.await(ctx, s.Installed, s.New, s.Began)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted while %s starts: run the same command again, or %s if the new program does not run",
			s.New, previous(s.Installed)+" upgrade "+s.File)
	}
	if err != nil {
		s.Why = oneline.Of(err.Error())
		return o.back(ctx, s)
	}
	if err := forget(o.DataDir); err != nil {
		return err
	}
	o.say("%s runs %s; the former program is %s", o.Service.Name(), s.New, previous(s.Installed))
	return nil
}

func (o Options) start(ctx context.Context, s *state) error {
	if sameFiles(s.Installed, previous(s.Installed)) { // it is the old one
		if err := os.Rename(staged(s.Installed), s.Installed); err != nil {
			return err
		}
		if err := atomicfile.SyncDir(filepath.Dir(s.Installed)); err != nil {
			return err
		}
	}
	return o.Service.Start(ctx)
}

// await waits until the program runs and its node is ready. The error has the program's own last error.
func (o Options) await(ctx context.Context, installed string, p Program, since time.Time) error {
	deadline := time.Now().Add(o.Within)
	for {
		up, ended, err := o.Service.Up(ctx)
		switch {
		case err != nil:
		case ended >= tooOften:
			return o.because(ctx, since, fmt.Errorf("it ended %d times", ended))
		case !up:
			err = fmt.Errorf("%s is still starting", o.Service.Name())
		default:
			if err = o.runs(installed); err == nil {
				err = o.Ready(ctx, p, since)
			}
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		if time.Now().After(deadline) {
			return o.because(ctx, since, fmt.Errorf("it was not ready within %s (%w)", o.Within, err))
		}
		reconcile.Sleep(ctx, o.every)
	}
}

// because adds the last error that the program has written.
func (o Options) because(ctx context.Context, since time.Time, err error) error {
	if line := lastError(o.Service.Output(ctx, since)); line != "" {
		return fmt.Errorf("%w: %s", err, line)
	}
	return err
}

// runs returns an error unless the process that uses the data directory is this program.
func (o Options) runs(installed string) error {
	pid := (host.Tree{}).RunningServer(o.DataDir)
	if pid == "" {
		return fmt.Errorf("no node runs on %s", o.DataDir)
	}
	if !sameFiles("/proc/"+pid+"/exe", installed) {
		return fmt.Errorf("the node of %s is process %s, which is not the program %s", o.DataDir, pid, installed)
	}
	return nil
}

// back puts back what was before. It cannot be interrupted by a signal, and goes on after a crash.
func (o Options) back(ctx context.Context, s *state) error {
	interrupted := ctx
	ctx = context.WithoutCancel(ctx)
	if s.Phase != returning {
		o.say("%s does not become ready: rolling back to %s", s.New, s.Old)
		// The mark first: without it, the data is back already.
		if err := atomicfile.Write(filepath.Join(o.DataDir, datadir.Returning), nil); err != nil {
			return o.unfinished(s, err)
		}
		s.Phase = returning
		if err := s.save(o.DataDir); err != nil {
			return o.unfinished(s, err)
		}
	}
	if err := o.putBack(ctx, s); err != nil {
		return o.unfinished(s, err)
	}
	began := time.Now()
	if err := o.Service.Start(ctx); err != nil {
		return o.unfinished(s, err)
	}
	again := o.await(interrupted, s.Installed, s.Old, began)
	if err := forget(o.DataDir); err != nil {
		return o.unfinished(s, err)
	}
	if again != nil {
		return fmt.Errorf("%s did not become ready: %s; %s is back, and is not ready yet: %w", s.New, s.Why, s.Old, again)
	}
	if err := os.Remove(previous(s.Installed)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	with := ""
	if slices.Contains(s.Copied, datadir.Etcd) { // not of a server among others, nor of an agent
		with = " with its data"
	}
	return fmt.Errorf("%s did not become ready, and %s runs again%s: %s", s.New, s.Old, with, s.Why)
}

func (o Options) unfinished(s *state, err error) error {
	return fmt.Errorf("%s did not become ready (%s), and the rollback to %s failed: %w: run the same command again", s.New, s.Why, s.Old, err)
}

func (o Options) putBack(ctx context.Context, s *state) error {
	mark := filepath.Join(o.DataDir, datadir.Returning)
	if _, err := os.Stat(mark); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := o.Service.Stop(ctx); err != nil {
		return err
	}
	if err := o.unused(); err != nil {
		return err
	}
	if !sameFiles(s.Installed, previous(s.Installed)) {
		if err := link(previous(s.Installed), s.Installed); err != nil {
			return err
		}
	}
	err := putBack(o.DataDir, s.Data, s.Copied, func(from, to string) error { return o.Renew(ctx, from, to) })
	if err != nil {
		return err
	}
	if err := os.Remove(staged(s.Installed)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Remove(mark); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(mark))
}

func (o Options) say(format string, a ...any) { fmt.Fprintf(o.Out, format+"\n", a...) }
