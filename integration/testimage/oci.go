package testimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Image is one of the images that share a layer.
type Image struct {
	Name   string // with its registry and tag, as pods name it
	Config v1.Config
}

// Write packs images of one layer, a tar, into an archive: an OCI image layout.
func Write(path string, content []byte, images ...Image) error {
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		return fmt.Errorf("make layer: %w", err)
	}
	dir, err := os.MkdirTemp("", "kubelith-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	oci, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("write image layout: %w", err)
	}
	for _, i := range images {
		image, err := newImage(layer, i.Config)
		if err != nil {
			return fmt.Errorf("make image %s: %w", i.Name, err)
		}
		// Both annotations: the specification's, and the one that containerd's import looks for first.
		names := layout.WithAnnotations(map[string]string{
			"org.opencontainers.image.ref.name": i.Name,
			"io.containerd.image.name":          i.Name,
		})
		if err := oci.AppendImage(image, names); err != nil {
			return fmt.Errorf("write image layout: %w", err)
		}
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := pack(out, dir); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

func newImage(layer v1.Layer, config v1.Config) (v1.Image, error) {
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.AppendLayers(base, layer)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Config = config
	return mutate.ConfigFile(image, file)
}

// pack writes a directory into a tar.
func pack(out io.Writer, dir string) error {
	w := tar.NewWriter(out)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		return fmt.Errorf("pack image: %w", err)
	}
	return w.Close()
}
