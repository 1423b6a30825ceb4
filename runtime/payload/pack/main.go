// Command pack writes the payload archive and its list from programs on disk. The same programs produce the same bytes:
// names sorted, no times, no owners.
//
//	go run ./runtime/payload/pack -out DIR NAME=FILE...
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

func main() {
	out := flag.String("out", "", "directory for payload.tar.zst and payload.list")
	flag.Parse()
	if err := run(*out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func run(out string, args []string) error {
	if out == "" || len(args) == 0 {
		return errors.New("give -out DIR and one or more NAME=FILE")
	}
	slices.Sort(args)
	archive, files, err := pack(args)
	if err != nil {
		return err
	}
	list := fmt.Sprintf("sha256 %x\n%s", sha256.Sum256(archive), files)
	if err := write(filepath.Join(out, "payload.tar.zst"), archive); err != nil {
		return err
	}
	return write(filepath.Join(out, "payload.list"), []byte(list))
}

// pack returns the compressed archive and the lines of its list.
func pack(args []string) (archive []byte, files string, err error) {
	var buf bytes.Buffer
	zw, err := zstd.NewWriter(&buf, zstd.WithEncoderLevel(zstd.SpeedBestCompression),
		zstd.WithWindowSize(8<<20), // what a decoder must hold in memory
		zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, "", err
	}
	tw := tar.NewWriter(zw)
	for _, arg := range args {
		name, path, ok := strings.Cut(arg, "=")
		if !ok {
			return nil, "", fmt.Errorf("%q is not NAME=FILE", arg)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, "", err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: 0o755, Format: tar.FormatUSTAR}
		if err := tw.WriteHeader(header); err != nil {
			return nil, "", err
		}
		if _, err := tw.Write(content); err != nil {
			return nil, "", err
		}
		files += fmt.Sprintf("%d %s%s\n", len(content), name, patched(content))
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		return nil, "", err
	}
	return buf.Bytes(), files, nil
}

// patched returns " MODULE VERSION" for a program of a module that was replaced by a directory when it was built:
// upstream's, patched.
func patched(program []byte) string {
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil || info.Main.Replace == nil { // not written in Go, or as upstream has it
		return ""
	}
	return " " + info.Main.Path + " " + info.Main.Version
}

// write replaces the file in one step, so that an interrupted build leaves no partial archive.
func write(path string, content []byte) error {
	if err := os.WriteFile(path+".tmp", content, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}
