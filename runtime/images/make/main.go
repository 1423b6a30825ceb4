// Command make writes the archive of embedded images: an OCI image layout in a compressed tar file, with a list of
// their names and digests beside it. The same programs produce the same bytes.
//
//	go run ./runtime/images/make -arch amd64 -out DIR/images.tar.zst -pause FILE -hello FILE
package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"kubelith.io/kubelith/runtime/images"
)

func main() {
	arch := flag.String("arch", "", "architecture of the programs, as Go names it")
	out := flag.String("out", "", "the archive; images.list is written beside it")
	pause := flag.String("pause", "", "the pause program, static")
	hello := flag.String("hello", "", "the hello program, static")
	flag.Parse()
	if err := run(*arch, *out, *pause, *hello); err != nil {
		fmt.Fprintln(os.Stderr, "make images:", err)
		os.Exit(1)
	}
}

func run(arch, out, pause, hello string) error {
	if arch == "" || out == "" || pause == "" || hello == "" {
		return errors.New("-arch, -out, -pause and -hello are all needed")
	}
	var buf bytes.Buffer
	// Layers are stored uncompressed inside: the whole archive compresses better, and unpacking needs no second
	// decoder.
	zw, err := zstd.NewWriter(&buf, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	w := &layout{tw: tar.NewWriter(zw), written: map[string]bool{}}
	if err := w.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	var list string
	for _, p := range []program{
		{name: images.Pause, path: pause, entrypoint: "/pause", user: "65535:65535"},
		{name: images.Hello, path: hello, entrypoint: "/hello", user: "65532:65532", port: "8080/tcp"},
	} {
		img, err := p.image(arch)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		digest, err := w.add(p.name, arch, img)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		list += p.name + " " + digest + "\n"
	}
	if err := errors.Join(w.finish(), zw.Close()); err != nil {
		return err
	}
	if err := write(out, buf.Bytes()); err != nil {
		return err
	}
	return write(filepath.Join(filepath.Dir(out), "images.list"), []byte(list))
}

// program is the content of an image.
type program struct {
	name       string
	path       string
	entrypoint string
	user       string // uid:gid
	port       string
}

func (p program) image(arch string) (v1.Image, error) {
	content, err := os.ReadFile(p.path)
	if err != nil {
		return nil, err
	}
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	header := &tar.Header{Typeflag: tar.TypeReg, Name: filepath.Base(p.entrypoint), Size: int64(len(content)), Mode: 0o755, Format: tar.FormatUSTAR}
	if err := tw.WriteHeader(header); err != nil {
		return nil, err
	}
	if _, err := tw.Write(content); err != nil {
		return nil, err
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), static.NewLayer(layer.Bytes(), types.OCIUncompressedLayer))
	if err != nil {
		return nil, err
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture = "linux", arch
	cfg.Config.Entrypoint = []string{p.entrypoint}
	cfg.Config.User = p.user
	cfg.Config.Env = []string{"PATH=/"}
	cfg.Config.WorkingDir = "/"
	if p.port != "" {
		cfg.Config.ExposedPorts = map[string]struct{}{p.port: {}}
	}
	img, err = mutate.ConfigFile(img, cfg)
	if err != nil {
		return nil, err
	}
	return mutate.ConfigMediaType(img, types.OCIConfigJSON), nil
}

// layout writes an OCI image layout (image-layout.md of the OCI image specification) as a tar stream.
type layout struct {
	tw      *tar.Writer
	written map[string]bool
	index   v1.IndexManifest
}

// add writes the image's blobs and returns its manifest's digest.
func (w *layout) add(name, arch string, img v1.Image) (string, error) {
	layers, err := img.Layers()
	if err != nil {
		return "", err
	}
	for _, l := range layers {
		h, err := l.Digest()
		if err != nil {
			return "", err
		}
		r, err := l.Compressed() // as it is stored
		if err != nil {
			return "", err
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return "", err
		}
		if err := w.blob(h, content); err != nil {
			return "", err
		}
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return "", err
	}
	configName, err := img.ConfigName()
	if err != nil {
		return "", err
	}
	manifest, err := img.RawManifest()
	if err != nil {
		return "", err
	}
	digest, err := img.Digest()
	if err != nil {
		return "", err
	}
	if err := errors.Join(w.blob(configName, config), w.blob(digest, manifest)); err != nil {
		return "", err
	}
	w.index.Manifests = append(w.index.Manifests, v1.Descriptor{
		MediaType: types.OCIManifestSchema1,
		Size:      int64(len(manifest)),
		Digest:    digest,
		Platform:  &v1.Platform{OS: "linux", Architecture: arch},
		Annotations: map[string]string{
			"io.containerd.image.name":          name, // containerd needs it; the tag alone is not enough
			"org.opencontainers.image.ref.name": images.Version,
		},
	})
	return digest.String(), nil
}

func (w *layout) finish() error {
	w.index.SchemaVersion, w.index.MediaType = 2, types.OCIImageIndex
	index, err := json.Marshal(w.index)
	if err != nil {
		return err
	}
	return errors.Join(w.file("index.json", index), w.tw.Close())
}

func (w *layout) blob(h v1.Hash, content []byte) error {
	return w.file("blobs/"+h.Algorithm+"/"+h.Hex, content)
}

func (w *layout) file(name string, content []byte) error {
	if w.written[name] {
		return nil
	}
	w.written[name] = true
	if err := w.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: 0o644, Format: tar.FormatUSTAR}); err != nil {
		return err
	}
	_, err := w.tw.Write(content)
	return err
}

// write replaces the file in one step, so that an interrupted build leaves no partial archive.
func write(path string, content []byte) error {
	if err := os.WriteFile(path+".tmp", content, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}
