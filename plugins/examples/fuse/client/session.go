package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	// maxWrite is the most that a request may read or write.
	maxWrite = 128 << 10
	// slotSize is enough for every request: the kernel refuses to hand out a request to a smaller buffer.
	slotSize = maxWrite + 8<<10
	// workers is how many requests are worked on at a time.
	workers = 12
	// headerSize is that of a request's header: length, opcode, unique ...
	headerSize = 40
	// answerHeader is the size of an answer's header: length, error, unique.
	answerHeader = 16
)

// The requests that this package treats in their own way. Source: include/uapi/linux/fuse.h
const (
	opForget, opUnlink, opRmdir, opRename = 2, 10, 11, 12
	opInit, opBatchForget, opRename2      = 26, 42, 45
)

// session works on the requests of one connection to the kernel, which another process may have begun.
//
// A request is read from the kernel into a slot: memory that is a file. Its answer is written beside it before it is
// given, and then the slot is emptied. So what a killed process had taken is there for the next one, which does it, or
// gives the answer if it was done: no program waits for an answer forever, and nothing is done twice. Slot 0 keeps the
// kernel's first request, INIT, by which each process learns what the kernel can do.
type session struct {
	device *os.File
	file   *os.File // of the slots; locked
	slots  []byte
	server *fuse.ProtocolServer
	log    func(string)

	ended sync.WaitGroup
}

// openSession returns a session of an open /dev/fuse. Its slots are in dir. It waits until no other process works on
// them.
func openSession(ctx context.Context, device *os.File, dir string, fs fuse.RawFileSystem, log func(string)) (_ *session, err error) {
	s := &session{device: device, log: log}
	if s.file, err = os.OpenFile(filepath.Join(dir, "requests"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.file.Close()
		}
	}()
	if err := lock(ctx, s.file); err != nil {
		return nil, err
	}
	const size = 2 * slotSize * (workers + 1)
	if err := s.file.Truncate(size); err != nil {
		return nil, err
	}
	if s.slots, err = unix.Mmap(int(s.file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return nil, fmt.Errorf("map the requests: %w", err)
	}
	s.server = fuse.NewProtocolServer(fs, &fuse.MountOptions{
		MaxWrite: maxWrite, MaxBackground: workers, DisableReadDirPlus: true, ExtraCapabilities: fuse.CAP_ATOMIC_O_TRUNC,
	})
	return s, nil
}

// serve works until the file system is unmounted. It returns before that if the device cannot be read.
func (s *session) serve() error {
	defer func() {
		unix.Munmap(s.slots)
		s.file.Close()
	}()
	answer := make([]byte, slotSize)
	if first, _ := s.slot(0); length(first) != 0 {
		s.server.HandleRequest([][]byte{first[:length(first)]}, [][]byte{answer}) // the kernel has had the answer
	}
	errs := make([]error, workers+1)
	for i := 1; i <= workers; i++ {
		s.ended.Go(func() { errs[i] = s.work(s.slot(i)) })
	}
	s.ended.Wait()
	return errors.Join(errs...)
}

// slot returns the memory of a request and of its answer.
func (s *session) slot(i int) (request, answer []byte) {
	both := s.slots[2*i*slotSize:]
	return both[:slotSize], both[slotSize : 2*slotSize]
}

// answered returns where the length of the answer is when there is one: behind the longest request.
func answered(request []byte) []byte { return request[slotSize-4:] }

// length of the request in a slot; 0: it is empty.
func length(request []byte) uint32 {
	if n := binary.NativeEndian.Uint32(request); n >= headerSize && n <= slotSize {
		return n
	}
	return 0
}

// work on requests, one after the other, first on the one in the slot if there is one.
func (s *session) work(request, answer []byte) error {
	for again := length(request) != 0; ; again = false {
		if !again {
			clear(answered(request))
			if err := s.read(request[:slotSize-4]); errors.Is(err, unix.ENODEV) {
				return nil // unmounted
			} else if err != nil {
				return fmt.Errorf("read a request of the kernel: %w", err)
			}
		}
		if n := binary.NativeEndian.Uint32(answered(request)); n == 0 || n > slotSize {
			binary.NativeEndian.PutUint32(answered(request), s.handle(request[:length(request)], answer, again))
		}
		if n := binary.NativeEndian.Uint32(answered(request)); n > 0 {
			_, err := s.device.Write(answer[:n])
			if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) { // it has the answer, or the mount is gone
				s.log(fmt.Sprintf("answer request %d of the kernel: %v", binary.NativeEndian.Uint32(request[4:]), err))
			}
		}
		clear(request[:4])
	}
}

// read waits for a request.
func (s *session) read(request []byte) error {
	raw, err := s.device.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var n int
		var failed error
		read := func(fd uintptr) { n, failed = unix.Read(int(fd), request) }
		err := raw.Read(func(fd uintptr) bool {
			read(fd)
			return !errors.Is(failed, unix.EAGAIN)
		})
		if err != nil { // it cannot be waited for: usually it is unmounted, as the device reports
			if err := raw.Control(read); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(failed, unix.EAGAIN):
			time.Sleep(10 * time.Millisecond)
			continue
		case errors.Is(failed, unix.EINTR), errors.Is(failed, unix.ENOENT): // taken back by the kernel
			clear(request[:4])
			continue
		case failed != nil:
			return failed
		case n == 0 || length(request) == 0:
			return unix.ENODEV
		}
		return nil
	}
}

// handle a request and return the length of its answer; 0: it needs none. again: an earlier process may have done a
// part of it.
func (s *session) handle(request, answer []byte, again bool) uint32 {
	opcode := binary.NativeEndian.Uint32(request[4:])
	if opcode == opInit {
		first, _ := s.slot(0)
		copy(first, request)
	}
	n, status := s.server.HandleRequest([][]byte{request}, [][]byte{answer})
	switch {
	case opcode == opForget || opcode == opBatchForget:
		return 0
	case n == 0 && status.Ok():
		return 0
	case n == 0: // it is wrong
		n = answerHeader
		binary.NativeEndian.PutUint32(answer[4:], uint32(-int32(status)))
		copy(answer[8:16], request[8:16])
	case again && -int32(binary.NativeEndian.Uint32(answer[4:])) == int32(syscall.ENOENT) &&
		(opcode == opUnlink || opcode == opRmdir || opcode == opRename || opcode == opRename2):
		n = answerHeader // the earlier process has done it
		clear(answer[4:8])
	}
	binary.NativeEndian.PutUint32(answer, uint32(n))
	return uint32(n)
}
