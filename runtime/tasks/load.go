package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	v2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/go-runc"
	"github.com/containerd/log"

	"kubelith.io/kubelith/runtime/sandbox"
)

// load finds the tasks of an earlier server again. What cannot be found again is ended, so that nothing of it stays.
func (m *Manager) load(ctx context.Context) error {
	creations, cancel := context.WithTimeout(ctx, creationTimeout) // what is under way may end until then
	defer cancel()
	spaces, err := os.ReadDir(m.opts.State)
	if err != nil {
		return err
	}
	for _, space := range spaces {
		ctx := namespaces.WithNamespace(ctx, space.Name())
		bundles, err := os.ReadDir(filepath.Join(m.opts.State, space.Name()))
		if err != nil {
			return err
		}
		for _, entry := range bundles {
			if strings.HasPrefix(entry.Name(), ".") { // it was being deleted
				_ = os.RemoveAll(filepath.Join(m.opts.State, space.Name(), entry.Name()))
				continue
			}
			bundle, err := v2.LoadBundle(ctx, m.opts.State, entry.Name())
			if err != nil {
				return err
			}
			r, err := readRecord(bundle.Path)
			if err == nil {
				err = m.find(ctx, creations, bundle, r)
			}
			if err != nil {
				log.G(ctx).WithError(err).WithField("id", bundle.ID).Warn("cannot recover a task of the last run: ending what is left of it")
				if err := endTask(ctx, bundle, r); err != nil {
					log.G(ctx).WithError(err).WithField("id", bundle.ID).Error("end a task of the last run")
				}
			}
		}
	}
	for _, p := range m.loading {
		p.forgetOthers()
		m.leave(p)
	}
	m.loading = nil
	m.endUnused()
	return m.removeWork()
}

func readRecord(bundle string) (*record, error) {
	content, err := os.ReadFile(filepath.Join(bundle, recordFile))
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(content, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(bundle, recordFile), err)
	}
	return &r, nil
}

// find makes the task of a bundle known again. One that is being made may go on until the end of creations.
func (m *Manager) find(ctx, creations context.Context, bundle *v2.Bundle, r *record) error {
	p, err := m.rejoin(podKey{bundle.Namespace, r.Pod}, r.Socket)
	if err != nil {
		return fmt.Errorf("the keeper of its pod: %w", err)
	}
	b := base{once: &sync.Once{}, manager: m, pod: p, bundle: bundle, record: *r}
	var t task
	if r.Key == 0 {
		t, err = findSandbox(b)
	} else {
		t, err = findContainer(creations, b)
		delete(p.found, r.Key)
	}
	if err == nil {
		err = m.tasks.Add(ctx, t)
	}
	if err != nil {
		if k := p.of(r.Key); k != nil {
			p.forget(k)
		}
		m.leave(p)
		return err
	}
	b.lostAlready(t)
	return nil
}

// forgetOthers lets go of what was executed for clients of the server before, when it has ended.
func (p *pod) forgetOthers() {
	for key := range p.found {
		k := p.of(key)
		go func() {
			select {
			case <-k.exited:
				drain(context.Background(), p, k, "")
				p.forget(k)
			case <-p.gone:
			}
		}()
	}
}

// rejoin returns a pod of the last run with one more task.
func (m *Manager) rejoin(key podKey, socket string) (*pod, error) {
	if p := m.another(key); p != nil {
		return p, nil
	}
	k, err := dialKeeper(socket)
	if err != nil {
		return nil, err
	}
	have, err := k.adopt()
	if err != nil {
		return nil, errors.Join(err, k.conn.Close())
	}
	p := m.add(&pod{podKey: key, socket: socket, keeper: k, found: have})
	m.mu.Lock()
	p.tasks++ // until all bundles are read: a task that is not found must not end its pod
	m.mu.Unlock()
	m.loading = append(m.loading, p)
	return p, nil
}

func findSandbox(b base) (task, error) {
	r, err := sandbox.ReadRecord(b.bundle.Path)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, errors.New("its process was being started")
	}
	group, err := r.Group()
	if err != nil {
		return nil, err
	}
	p := newPause(b, r, group)
	p.start()
	return p, nil
}

func findContainer(creations context.Context, b base) (task, error) {
	was := b.pod.found[b.record.Key]
	if was.pid == 0 {
		if was.program != 0 { // what it makes is complete, and can be deleted, once it has ended
			_, _ = b.pod.await(creations, was.program)
		}
		return nil, errors.New("its process was being started")
	}
	c := newContainer(b)
	c.kept = b.pod.of(b.record.Key)
	// runc removes this file when it starts the container. Source: runc, libcontainer/container_linux.go.
	if _, err := os.Lstat(filepath.Join(c.runc.Root, c.ID(), "exec.fifo")); errors.Is(err, os.ErrNotExist) {
		c.start()
	}
	c.created(was.pid)
	return c, nil
}

// endTask ends what is left of a task. The record is nil if it has none.
func endTask(ctx context.Context, bundle *v2.Bundle, r *record) error {
	var failed error
	if s, err := sandbox.ReadRecord(bundle.Path); err == nil && s != nil {
		failed = s.End()
	}
	if r != nil && r.Key != 0 && r.Options != nil {
		c := newRunc(bundle, r.Options)
		ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
		defer cancel()
		if err := deleteIfThere(ctx, c, bundle.ID, &runc.DeleteOpts{Force: true}); err != nil {
			failed = errors.Join(failed, err)
		}
	}
	return errors.Join(failed, bundle.Delete())
}

// endUnused ends the keepers without a task, such as that of a server that ended before it had made one.
func (m *Manager) endUnused() {
	m.mu.Lock()
	used := map[string]bool{}
	for _, p := range m.pods {
		used[p.socket] = true
	}
	m.mu.Unlock()
	entries, _ := os.ReadDir(m.opts.Socket)
	for _, e := range entries {
		path := filepath.Join(m.opts.Socket, e.Name())
		if used[path] {
			continue
		}
		if k, err := dialKeeper(path); err == nil {
			_, _ = k.adopt()
			k.quit()
		}
		_ = os.Remove(path)
	}
}

// removeWork removes the work directories without a task: after a start of the machine, none has one.
func (m *Manager) removeWork() error {
	spaces, err := os.ReadDir(m.opts.Root)
	if err != nil {
		return err
	}
	for _, space := range spaces {
		entries, err := os.ReadDir(filepath.Join(m.opts.Root, space.Name()))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if _, err := m.tasks.Get(namespaces.WithNamespace(context.Background(), space.Name()), e.Name()); err != nil {
				if err := os.RemoveAll(filepath.Join(m.opts.Root, space.Name(), e.Name())); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
