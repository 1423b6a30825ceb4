package podlink

import (
	"errors"
	"fmt"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// withStore opens host-local's files.
func (s *Server) withStore(n *network, f func(*disk.Store) error) error {
	s.addresses.Lock()
	defer s.addresses.Unlock()
	store, err := disk.New(n.addresses.Name, n.addresses.DataDir)
	if err != nil {
		return fmt.Errorf("the addresses of pods: %w", err)
	}
	return errors.Join(f(store), store.Close())
}

// take reserves an address of each family.
func (s *Server) take(c *call, n *network) (addresses []*current.IPConfig, err error) {
	err = s.withStore(n, func(store *disk.Store) error {
		for i := range n.addresses.Ranges {
			address, err := allocator.NewIPAllocator(&n.addresses.Ranges[i], store, i).Get(c.container, c.ifName, nil)
			if err != nil {
				err = fmt.Errorf("no address for the pod: %w", err)
				if i > 0 {
					err = errors.Join(err, release(store, c))
				}
				return err
			}
			address.Interface = current.Int(ofPod)
			addresses = append(addresses, address)
		}
		return nil
	})
	return addresses, err
}

// giveBack frees the pod's addresses. There may be none.
func (s *Server) giveBack(c *call, n *network) error {
	return s.withStore(n, func(store *disk.Store) error { return release(store, c) })
}

// release works under host-local's own lock, as its program does.
func release(store *disk.Store, c *call) error {
	return allocator.NewIPAllocator(nil, store, 0).Release(c.container, c.ifName)
}

// has returns an error for a pod without address.
func (s *Server) has(c *call, n *network) error {
	return s.withStore(n, func(store *disk.Store) error {
		if !store.FindByID(c.container, c.ifName) {
			return fmt.Errorf("no address is reserved for %s of %s", c.ifName, c.container)
		}
		return nil
	})
}
