package etcd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
)

// maxWalk is the size, in bytes, up to which the whole database is read before etcd opens it: some 30 ms
// for 10 MB that are not in the page cache. Of a larger one only the head is checked.
const maxWalk = 256 << 20

// DatabaseFile is the path of the database in etcd's data directory.
func DatabaseFile(dataDir string) string { return filepath.Join(dataDir, "member", "snap", "db") }

// verify finds damage on which etcd would panic in its own goroutine or receive a signal, which would end the process
// with a stack trace, and a missing write-ahead log, which etcd would replace by an empty one and then ignore writes
// until it has caught up. A directory without data is valid.
func verify(dataDir string) error {
	path := DatabaseFile(dataDir)
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || (err == nil && info.Size() == 0) {
		return nil // a first start, or an interrupted one
	}
	if err != nil {
		return err
	}
	applied, err := walk(path, info.Size())
	if err != nil {
		return fmt.Errorf("%s: invalid database: %w", path, err)
	}
	logs, err := filepath.Glob(filepath.Join(dataDir, "member", "wal", "*.wal"))
	if err != nil {
		return err
	}
	if applied > 0 && len(logs) == 0 {
		return fmt.Errorf("wal: no *.wal file in %s", filepath.Join(dataDir, "member", "wal"))
	}
	return nil
}

// Begun reports whether a member has data. A new one creates its directory and an empty database first, queries the
// members of its cluster then, and writes its log last: what was interrupted before that has not begun. A database with
// data whose log is lost has: Run reports that.
// Source: bootstrap of etcd/server/etcdserver/bootstrap.go.
func Begun(dataDir string) bool {
	logs, _ := filepath.Glob(filepath.Join(dataDir, "member", "wal", "*.wal")) // the pattern is valid
	if len(logs) > 0 {
		return true
	}
	path := DatabaseFile(dataDir)
	info, err := os.Stat(path)
	if err != nil || info.Size() == 0 {
		return false
	}
	applied, err := walk(path, info.Size())
	return err != nil || applied > 0
}

// walk reads every page in use and returns the number of the last log entry that the database has applied.
func walk(path string, size int64) (applied uint64, err error) {
	err = ReadDatabase(path, func(tx *bolt.Tx) error {
		if tx.Size() > size {
			return fmt.Errorf("it has %d bytes and should have %d", size, tx.Size())
		}
		if meta := tx.Bucket([]byte("meta")); meta != nil {
			if v := meta.Get([]byte("consistent_index")); len(v) == 8 {
				applied = binary.BigEndian.Uint64(v)
			}
		}
		if size > maxWalk {
			return nil
		}
		return tx.ForEach(func(_ []byte, b *bolt.Bucket) error { return walkBucket(b) })
	})
	return applied, err
}

// ReadDatabase calls read with the database of an etcd that does not run. It fails where the file is truncated or used.
func ReadDatabase(path string, read func(tx *bolt.Tx) error) (err error) {
	// A page behind the end of a truncated file is a fault of this goroutine: a panic instead of the end of the
	// process.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(read)
}

// walkBucket touches all keys and the first and last byte of each value: a value may be longer than a page.
func walkBucket(b *bolt.Bucket) error {
	var sum byte
	err := b.ForEach(func(k, v []byte) error {
		if v == nil {
			if child := b.Bucket(k); child != nil {
				return walkBucket(child)
			}
		}
		if len(v) > 0 {
			sum += v[0] + v[len(v)-1]
		}
		return nil
	})
	_ = sum
	return err
}
