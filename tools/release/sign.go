package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"aead.dev/minisign"
)

const (
	sums      = "SHA256SUMS"
	signature = ".minisig"
)

// published returns the names of the files in dist that have a checksum.
func published(dist string) ([]string, error) {
	entries, err := os.ReadDir(dist) // by name
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() && e.Name() != sums && !strings.HasSuffix(e.Name(), signature) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// writeSums writes SHA256SUMS, as sha256sum does.
func writeSums(dist string) error {
	text, err := sumsOf(dist)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dist, sums), text, 0o644)
}

func sumsOf(dist string) ([]byte, error) {
	names, err := published(dist)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, name := range names {
		f, err := os.Open(filepath.Join(dist, name))
		if err != nil {
			return nil, err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "%x  %s\n", h.Sum(nil), name)
	}
	return out.Bytes(), nil
}

// sign signs the executables, which `kubelith upgrade --sig` verifies, and SHA256SUMS, which stands for everything
// else. It signs nothing when a file is not that of SHA256SUMS: a maintainer who signs on another machine signs what
// was built.
func sign(dist, keyFile, password string) error {
	text, err := os.ReadFile(keyFile)
	if err != nil {
		return fmt.Errorf("the key: %w", err)
	}
	key, err := readKey(text, password)
	if err != nil {
		return fmt.Errorf("%s: %w", keyFile, err)
	}
	want, err := os.ReadFile(filepath.Join(dist, sums))
	if err != nil {
		return fmt.Errorf("%w: run make release first", err)
	}
	have, err := sumsOf(dist)
	if err != nil {
		return err
	}
	if !bytes.Equal(want, have) {
		return fmt.Errorf("the files in %s are not those of its %s: nothing was signed", dist, sums)
	}
	names, err := published(dist)
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return filepath.Ext(name) != "" }) // the executables
	for _, name := range append(names, sums) {
		f, err := os.Open(filepath.Join(dist, name))
		if err != nil {
			return err
		}
		r := minisign.NewReader(f)
		_, err = io.Copy(io.Discard, r)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		// Without a time: two signatures of one file are the same.
		made := r.SignWithComments(key, "file:"+name, "signature of Kubelith's "+name)
		if err := os.WriteFile(filepath.Join(dist, name+signature), made, 0o644); err != nil {
			return err
		}
		fmt.Println("signed", name)
	}
	return nil
}

func readKey(text []byte, password string) (key minisign.PrivateKey, err error) {
	if !minisign.IsEncrypted(text) {
		return key, key.UnmarshalText(text)
	}
	if password == "" {
		return key, errors.New("the key is encrypted: set MINISIGN_PASSWORD")
	}
	return minisign.DecryptKey(password, text)
}
