package logging

import (
	"bytes"
	"sync"
)

// LaterFile keeps the log in memory until it is opened: a refused start creates no file, and does not touch that of a
// running server.
type LaterFile struct {
	mu   sync.Mutex
	file *File
	kept bytes.Buffer
}

// Write implements io.Writer.
func (l *LaterFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return l.kept.Write(p)
	}
	return l.file.Write(p)
}

// Open creates the file, as NewFile does; it stays open until the process ends. The caller holds its directory, so no
// process uses the old file any more.
func (l *LaterFile) Open(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	file, err := NewFile(name)
	if err != nil {
		return err
	}
	l.file = file
	_, err = file.Write(l.kept.Bytes())
	l.kept.Reset()
	return err
}
