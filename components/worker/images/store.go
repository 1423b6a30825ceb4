package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
)

const (
	// leaseLabel marks the leases of our imports.
	leaseLabel = "kubelith.io/image-import"
	// pinnedLabel keeps an image from the kubelet's garbage collection (containerd's internal/cri/labels).
	pinnedLabel = "io.cri-containerd.pinned"
)

// store is containerd's image store. CRI labels new images as its own.
type store struct {
	client      *client.Client
	snapshotter string
}

// missing reports whether one of the images does not exist, or has another digest.
func (s *store) missing(ctx context.Context, digests map[string]string) (bool, error) {
	for name, digest := range digests {
		img, err := s.client.ImageService().Get(ctx, name)
		if errdefs.IsNotFound(err) {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("look up image %s: %w", name, err)
		}
		if img.Target.Digest.String() != digest {
			return true, nil
		}
	}
	return false, nil
}

// pin keeps images from the kubelet's garbage collection: embedded ones would come back only at the next start.
func (s *store) pin(ctx context.Context, digests map[string]string) error {
	service := s.client.ImageService()
	for name := range digests {
		img, err := service.Get(ctx, name)
		if err != nil {
			return fmt.Errorf("look up image %s: %w", name, err)
		}
		if img.Labels[pinnedLabel] == "pinned" {
			continue
		}
		if img.Labels == nil {
			img.Labels = map[string]string{}
		}
		img.Labels[pinnedLabel] = "pinned"
		if _, err := service.Update(ctx, img, "labels."+pinnedLabel); err != nil {
			return fmt.Errorf("pin image %s: %w", name, err)
		}
	}
	return nil
}

// importArchive reads an image archive (OCI layout or docker save; tar, plain or compressed) into the store and unpacks
// its images for this platform. It returns the digests of the images by name.
//
// A lease holds the content until the images exist, which comes last: an interrupted import leaves no image, and its
// content is removed with the lease. base is the archive's name without the extension; it names images for which the
// archive has only a tag.
func (s *store) importArchive(ctx context.Context, archive io.Reader, base string) (_ map[string]string, err error) {
	manager := s.client.LeasesService()
	lease, err := manager.Create(ctx, leases.WithRandomID(), leases.WithExpiration(time.Hour),
		leases.WithLabels(map[string]string{leaseLabel: "1"}))
	if err != nil {
		return nil, fmt.Errorf("create a lease: %w", err)
	}
	defer func() {
		var opts []leases.DeleteOpt
		if err != nil {
			// Half-written content must be gone before the next archive, which may have a blob of the same file name:
			// containerd would append to it.
			opts = append(opts, leases.SynchronousDelete)
		}
		err = errors.Join(err, manager.Delete(context.WithoutCancel(ctx), lease, opts...))
	}()
	ctx = leases.WithLease(ctx, lease.ID)
	tar, err := compression.DecompressStream(archive)
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	defer tar.Close()
	imported, err := s.client.Import(ctx, tar, client.WithImageRefTranslator(fullName(base)))
	if err != nil {
		return nil, err
	}
	if len(imported) == 0 {
		return nil, errors.New("no image in it has a name")
	}
	digests := map[string]string{}
	for _, i := range imported {
		// syncfs before the layers count as unpacked: after a power failure they would be taken for complete.
		img := client.NewImageWithPlatform(s.client, i, platforms.Default())
		if err := img.Unpack(ctx, s.snapshotter, client.WithUnpackApplyOpts(diff.WithSyncFs(true))); err != nil {
			return nil, fmt.Errorf("unpack %s: %w", i.Name, err)
		}
		digests[i.Name] = i.Target.Digest.String()
	}
	return digests, nil
}

// dropInterrupted deletes the leases of imports that were killed, so that half-written content is removed now and not
// mistaken for the beginning of another archive's.
func (s *store) dropInterrupted(ctx context.Context) error {
	left, err := s.client.LeasesService().List(ctx, fmt.Sprintf("labels.%q", leaseLabel))
	if err != nil {
		return fmt.Errorf("list leases: %w", err)
	}
	for _, l := range left {
		if err := s.client.LeasesService().Delete(ctx, l, leases.SynchronousDelete); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("delete lease %s of an interrupted import: %w", l.ID, err)
		}
	}
	return nil
}
