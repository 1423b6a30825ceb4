package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"runtime"

	"kubelith.io/kubelith/plugins/examples/fuse/driver"
)

// writeImage writes an OCI image layout, in a tar, whose only file is this program.
func writeImage(path string) error {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	var layer bytes.Buffer
	if err := tarOf(&layer, file{"fuse", 0o755, program}); err != nil {
		return err
	}
	var packed bytes.Buffer
	zip, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if _, err := zip.Write(layer.Bytes()); err != nil {
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}
	type blob = map[string]any
	var files []file
	add := func(mediaType string, content []byte) blob {
		digest := digestOf(content)
		files = append(files, file{"blobs/sha256/" + digest, 0o644, content})
		return blob{"mediaType": mediaType, "digest": "sha256:" + digest, "size": len(content)}
	}
	text := func(v any) []byte {
		out, _ := json.Marshal(v) // maps and strings
		return out
	}
	layers := []blob{add("application/vnd.oci.image.layer.v1.tar+gzip", packed.Bytes())}
	config := add("application/vnd.oci.image.config.v1+json", text(blob{
		"os": "linux", "architecture": runtime.GOARCH, "config": blob{"Entrypoint": []string{"/fuse"}, "Env": []string{"PATH=/"}, "WorkingDir": "/"},
		"rootfs": blob{"type": "layers", "diff_ids": []string{"sha256:" + digestOf(layer.Bytes())}},
	}))
	const manifestType = "application/vnd.oci.image.manifest.v1+json"
	manifest := add(manifestType, text(blob{"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": layers}))
	manifest["annotations"] = blob{"io.containerd.image.name": driver.Image, "org.opencontainers.image.ref.name": driver.Image}
	files = append(files, file{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		file{"index.json", 0o644, text(blob{"schemaVersion": 2, "manifests": []blob{manifest}})})
	var out bytes.Buffer
	if err := tarOf(&out, files...); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

type file struct {
	name    string
	mode    int64
	content []byte
}

func tarOf(out *bytes.Buffer, files ...file) error {
	w := tar.NewWriter(out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content))}); err != nil {
			return err
		}
		if _, err := w.Write(f.content); err != nil {
			return err
		}
	}
	return w.Close()
}
