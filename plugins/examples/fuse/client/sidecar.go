package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"kubelith.io/kubelith/plugins/examples/fuse/store"
)

// statusName is a file in the directory of a sidecar: why its volumes cannot be used yet, or statusReady.
const (
	statusName  = "status"
	statusReady = "ready\n"
)

// readyWait is how long Ready waits: a probe is often a moment too early.
const readyWait = 3 * time.Second

// busyWait is how long a sidecar that is ended still serves a program that is being killed at the same time.
const busyWait = 1500 * time.Millisecond

// RunSidecar serves all volumes of the pod that it runs in, until ctx ends; then it returns when all is uploaded. run
// is the directory with the driver's sockets, dir its own.
//
// It has no credentials and mounts nothing: the driver mounts the pod's volumes before the pod starts, hands over the
// connections to the kernel, and serves the objects of these volumes.
func RunSidecar(ctx context.Context, run, dir string, log func(string)) error {
	s := &sidecar{run: run, dir: dir, log: log}
	if err := s.tell("it starts"); err != nil {
		return err
	}
	volumes := s.volumes(ctx)
	var all []*Client
	var work sync.WaitGroup
	for _, v := range volumes {
		c, unlock, err := s.open(ctx, v)
		if err != nil {
			return err
		}
		defer unlock()
		all = append(all, c)
		work.Go(func() {
			c.prepare(ctx, func() (Config, store.Store, error) { return Config{Capacity: v.Capacity}, s.store(v.ID), nil })
		})
		for _, op := range []string{"serve", "work"} {
			work.Go(func() { s.converse(ctx, c, Hello{Op: op, Volume: v.ID}) })
		}
	}
	s.watch(ctx, volumes, all)
	work.Wait()
	if conn, err := s.dial(Hello{Op: "end"}); err == nil { // or the plugin is not there: then it learns it later
		defer conn.Close()
	}
	for begin := time.Now(); slices.ContainsFunc(all, (*Client).busy) && time.Since(begin) < busyWait; {
		time.Sleep(checkEvery / 20)
	}
	for _, c := range all { // the pod's grace period is the limit
		for err := c.end(); err != nil; err = c.end() {
			log("not everything is uploaded: " + err.Error())
			time.Sleep(checkEvery)
		}
	}
	return nil
}

func (c *Client) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.files != nil && c.files.Busy()
}

// Ready returns the reason if the sidecar with this directory does not serve its volumes yet.
func Ready(dir string) error {
	for begin := time.Now(); ; time.Sleep(checkEvery / 20) {
		text, err := os.ReadFile(filepath.Join(dir, statusName))
		if err == nil && string(text) == statusReady {
			return nil
		}
		if time.Since(begin) > readyWait {
			return errors.Join(err, errors.New(strings.TrimSpace(string(text))))
		}
	}
}

type sidecar struct {
	run, dir string
	log      func(string)
	told     string
}

// tell writes the status.
func (s *sidecar) tell(status string) error {
	status += "\n"
	if status == s.told {
		return nil
	}
	path := filepath.Join(s.dir, statusName)
	if err := os.WriteFile(path+".new", []byte(status), 0o600); err != nil {
		return err
	}
	s.told = status
	return os.Rename(path+".new", path)
}

// volumes returns those of the pod, as soon as the driver sends them.
func (s *sidecar) volumes(ctx context.Context) []Volume {
	for ctx.Err() == nil {
		v, err := s.ask()
		if err == nil {
			return v.Volumes
		}
		if err := s.tell(err.Error()); err != nil {
			s.log(err.Error())
		}
		pause(ctx, checkEvery/4)
	}
	return nil
}

func (s *sidecar) ask() (v Volumes, err error) {
	conn, err := s.dial(Hello{Op: "volumes"})
	if err != nil {
		return v, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(checkTimeout)); err != nil {
		return v, err
	}
	fd, err := receive(conn, &v)
	closeFD(fd)
	return v, err
}

func (s *sidecar) dial(h Hello) (*net.UnixConn, error) {
	conn, err := dialPacket(s.run, DriverSocket)
	if err != nil {
		return nil, fmt.Errorf("the plugin fuse of this node does not answer: %w", err)
	}
	if err := send(conn, h, -1); err != nil {
		conn.Close()
		return nil, fmt.Errorf("the plugin fuse of this node: %w", err)
	}
	return conn, nil
}

// store returns the objects of a volume, which the driver serves.
func (s *sidecar) store(volume string) store.Store {
	return store.Remote(volume, func(ctx context.Context) (net.Conn, error) {
		path, done, err := shortPath(s.run, StoreSocket)
		if err != nil {
			return nil, err
		}
		defer done()
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	})
}

// open returns the client of a volume, alone with its directory.
func (s *sidecar) open(ctx context.Context, v Volume) (c *Client, unlock func(), err error) {
	c = &Client{dir: filepath.Join(s.dir, v.ID), reason: "it starts", log: func(m string) { s.log(v.ID + ": " + m) }}
	if err := os.Mkdir(c.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, nil, err
	}
	own, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, nil, err
	}
	if err := lock(ctx, own); err != nil {
		own.Close()
		return nil, nil, err
	}
	return c, func() { own.Close() }, nil
}

// converse keeps a connection on which the driver makes requests.
func (s *sidecar) converse(ctx context.Context, c *Client, h Hello) {
	for ctx.Err() == nil {
		if conn, err := s.dial(h); err == nil {
			c.talk(ctx, conn)
		}
		pause(ctx, checkEvery/4)
	}
}

// watch writes the status until ctx ends.
func (s *sidecar) watch(ctx context.Context, volumes []Volume, all []*Client) {
	for ctx.Err() == nil {
		status := strings.TrimSpace(statusReady)
		for i, c := range all {
			c.mu.Lock()
			if c.mount == "" && c.reason != "" {
				status = volumes[i].ID + ": " + c.reason
			} else if c.mount == "" {
				status = volumes[i].ID + ": the plugin fuse of this node has not connected it yet"
			}
			c.mu.Unlock()
		}
		if err := s.tell(status); err != nil {
			s.log(err.Error())
		}
		pause(ctx, checkEvery/20)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
