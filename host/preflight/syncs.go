package preflight

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/datadir"
)

const (
	// syncWrites of syncSize bytes are like those of etcd to its log.
	syncWrites, syncSize = 100, 2300
	// syncsFor bounds the measurement of a slow disk: no write begins later.
	syncsFor = 3 * time.Second
	// slowSync is what 99 of 100 syncs should take at most. Source: https://etcd.io/docs/v3.6/faq/.
	slowSync = 10 * time.Millisecond
)

// checkSyncs measures the disk as etcd uses it: where its data is, or will be.
func checkSyncs(p probe, dataDir string) Result {
	const name = "disk"
	dir := nearest(p.files, filepath.Join(dataDir, datadir.Etcd))
	took, err := syncTime(p, dir)
	if err != nil {
		return Result{name, Warn, fmt.Sprintf("the time of syncs cannot be measured in %s: %v", dir, err),
			"mount it writable and free some space, or use another --data-dir"}
	}
	shown := took.Round(10 * time.Microsecond)
	if took > slowSync {
		return Result{name, Warn, fmt.Sprintf("99 of 100 syncs in %s take up to %s, and each write to the API waits for one; "+
			"etcd recommends %s at most", dir, shown, slowSync),
			"put --data-dir on a faster disk, such as an SSD, or keep other load off this one"}
	}
	return Result{Name: name, Status: OK, Message: fmt.Sprintf("99 of 100 syncs in %s take %s or less", dir, shown)}
}

// syncTime returns how long 99 of 100 syncs in a directory take at most.
func syncTime(p probe, dir string) (time.Duration, error) {
	write, end, err := p.syncs(dir)
	if err != nil {
		return 0, err
	}
	defer end()
	var all []time.Duration
	began := p.clock()
	for at := began; len(all) < syncWrites && at.Sub(began) < syncsFor; {
		if err := write(); err != nil {
			return 0, err
		}
		now := p.clock()
		all = append(all, now.Sub(at))
		at = now
	}
	slices.Sort(all)
	return all[(99*len(all)+99)/100-1], nil
}

// syncedFile returns a function that writes to a file in a directory and syncs it, and one that closes the file. The
// file has no name: nothing is left of it, however this process ends.
func syncedFile(dir string) (write func() error, end func(), err error) {
	f, err := os.CreateTemp(dir, ".kubelith-check-")
	if err != nil {
		return nil, nil, err
	}
	end = func() { f.Close() }
	if err := os.Remove(f.Name()); err != nil {
		end()
		return nil, nil, err
	}
	fd := int(f.Fd())
	// As etcd does. Where it is not possible, the file grows with each write.
	_ = unix.Fallocate(fd, 0, 0, syncWrites*syncSize)
	data := make([]byte, syncSize)
	return func() error {
		if _, err := f.Write(data); err != nil {
			return err
		}
		for {
			if err := unix.Fdatasync(fd); err != unix.EINTR {
				return err
			}
		}
	}, end, nil
}
