package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// addressDir is where podlink keeps a file per address that is in use.
func (s *Server) addressDir() string { return filepath.Join(s.opts.DataDir, networkName) }

// releaseAddresses frees the addresses of sandboxes that no longer exist. Normally CRI frees them when it stops a
// sandbox, after a reboot too; but a process that was killed between the reservation and the record of the sandbox
// leaves one behind, each time. Addresses assigned after `before` are left alone: their sandboxes may be in creation.
func releaseAddresses(ctx context.Context, address, dir string, before time.Time, log logrus.FieldLogger) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	resp, err := runtimeapi.NewRuntimeServiceClient(conn).ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	exists := map[string]bool{}
	for _, sandbox := range resp.Items {
		exists[sandbox.Id] = true
	}
	for _, f := range files {
		if _, err := netip.ParseAddr(f.Name()); err != nil {
			continue // host-local's own files: lock, last_reserved_ip.N
		}
		path := filepath.Join(dir, f.Name())
		stale, err := abandoned(path, exists, before)
		if err != nil {
			return err
		}
		if !stale {
			continue
		}
		if err := os.Remove(path); err != nil {
			return err
		}
		log.Infof("released the address %s of a sandbox that is gone", f.Name())
	}
	return nil
}

// abandoned reports whether the address file, which holds "<sandbox id>\r\n<interface>", is older than before and names
// a sandbox that does not exist.
func abandoned(path string, exists map[string]bool, before time.Time) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // freed just now
	}
	if err != nil {
		return false, err
	}
	if !info.ModTime().Before(before) {
		return false, nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	id, _, _ := strings.Cut(string(content), "\n")
	return !exists[strings.TrimSpace(id)], nil
}
