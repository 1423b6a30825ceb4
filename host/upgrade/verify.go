package upgrade

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"aead.dev/minisign"

	"kubelith.io/kubelith/base/atomicfile"
)

// Proof is what shows that a file is what its maker has published. Without any, it is not verified.
type Proof struct {
	// SHA256 is the file's checksum in hexadecimal.
	SHA256 string
	// Signature is a file that minisign has written, and PublicKey the file with its maker's public key.
	Signature, PublicKey string
}

// given reports whether there is something to verify the file with.
func (p Proof) given() bool { return p.SHA256 != "" || p.Signature != "" }

// sum returns the SHA-256 of a file in hexadecimal.
func sum(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read %s: %w", file, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// stage copies file to a new file beside the program, so that what is verified is what is installed later, and on the
// same file system. It returns the checksum. On an error there is no copy.
func (p Proof) stage(file, to string) (checksum string, err error) {
	in, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer in.Close()
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) { // of an earlier try
		return "", err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
	if err != nil {
		return "", err
	}
	defer func() {
		if err = errors.Join(err, out.Close()); err != nil {
			os.Remove(to)
		}
	}()
	h := sha256.New()
	signed := minisign.NewReader(io.TeeReader(in, h))
	if _, err := io.Copy(out, signed); err != nil {
		return "", fmt.Errorf("copy %s to %s: %w", file, to, err)
	}
	checksum = hex.EncodeToString(h.Sum(nil))
	if p.SHA256 != "" && !strings.EqualFold(p.SHA256, checksum) {
		return "", fmt.Errorf("%s is not the file that was published: its sha256 is %s, not %s: download it again", file, checksum, p.SHA256)
	}
	if p.Signature != "" {
		if err := p.checkSignature(file, signed); err != nil {
			return "", err
		}
	}
	if err := out.Chmod(0o755); err != nil {
		return "", err
	}
	if err := out.Sync(); err != nil {
		return "", fmt.Errorf("write %s: %w", to, err)
	}
	return checksum, atomicfile.SyncDir(filepath.Dir(to))
}

// checkSignature checks the signature of what was read.
func (p Proof) checkSignature(file string, read *minisign.Reader) error {
	text, err := os.ReadFile(p.PublicKey)
	if err != nil {
		return fmt.Errorf("the public key of minisign: %w: give the file with --key", err)
	}
	var key minisign.PublicKey
	if err := key.UnmarshalText(text); err != nil {
		return fmt.Errorf("%s is not a public key of minisign", p.PublicKey)
	}
	signature, err := os.ReadFile(p.Signature)
	if err != nil {
		return fmt.Errorf("the signature: %w", err)
	}
	var s minisign.Signature
	if err := s.UnmarshalText(signature); err != nil {
		return fmt.Errorf("%s is not a signature of minisign", p.Signature)
	}
	switch {
	case s.Algorithm != minisign.HashEdDSA:
		return fmt.Errorf("%s is a signature of minisign's old format: sign the file again with minisign 0.10 or later", p.Signature)
	case s.KeyID != key.ID():
		return fmt.Errorf("%s was made with another key (%X) than that of %s (%X)", p.Signature, s.KeyID, p.PublicKey, key.ID())
	case !read.Verify(key, signature):
		return fmt.Errorf("%s is not the file that was signed: the signature %s does not match", file, p.Signature)
	}
	return nil
}
