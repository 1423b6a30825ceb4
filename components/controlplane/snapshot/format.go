package snapshot

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"

	"kubelith.io/kubelith/base/datadir"
)

// A snapshot begins with a line that identifies the format (magic), and a line of JSON that describes the content
// (Header). Both can be read without a key. What follows is a tar archive, compressed by zstd and, if wanted, encrypted
// by age. Its first entry is the line of JSON again, so that a change of it in an encrypted file is detected.
const (
	magic = "kubelith snapshot 1\n"
	// maxHeader bounds the two lines.
	maxHeader = 64 << 10
)

// The entries of the archive. Files of the data directory are below filesEntry.
const (
	headerEntry   = "header.json"
	databaseEntry = "etcd.db"
	configEntry   = "config.yaml"
	filesEntry    = "data/"
)

// Header describes a snapshot.
type Header struct {
	Created time.Time `json:"created"`
	// Kubelith, Kubernetes and Etcd are the versions that wrote it.
	Kubelith   string `json:"kubelith"`
	Kubernetes string `json:"kubernetes"`
	Etcd       string `json:"etcd"`
	// Cluster is the hash of the cluster's CA, as in its join tokens.
	Cluster string `json:"cluster"`
	// Settings are what cannot change in the life of the cluster. Its node is the server that wrote the snapshot.
	Settings datadir.Settings `json:"settings"`
	// NodeIPs are the addresses of that server.
	NodeIPs []string `json:"nodeIPs"`
	// Revision is etcd's, and DatabaseBytes the size of its database.
	Revision      int64 `json:"revision"`
	DatabaseBytes int64 `json:"databaseBytes"`
	// Plugins are the executables in the server's directories for plugins, as KIND/NAME. They are not in the snapshot.
	Plugins []string `json:"plugins,omitempty"`
	// Encryption is "passphrase", "key" or, where there is none, empty.
	Encryption string `json:"encryption,omitempty"`
}

// Faults of a file, which the caller explains.
var (
	errForeign = errors.New("it is not a snapshot of Kubelith")
	errDamaged = errors.New("it is truncated or damaged")
	errKey     = errors.New("the passphrase or key is wrong")
)

// ReadHeader reads the first two lines of a snapshot.
func ReadHeader(r io.Reader) (Header, error) {
	h, _, err := readHeader(bufio.NewReader(r))
	return h, err
}

func readHeader(r *bufio.Reader) (h Header, line []byte, err error) {
	begin := make([]byte, len(magic))
	if _, err := io.ReadFull(r, begin); err != nil || string(begin) != magic {
		if bytes.HasPrefix(begin, []byte("kubelith snapshot ")) {
			return h, nil, errors.New("it was written by a later release: use that release")
		}
		return h, nil, errForeign
	}
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) || len(line) > maxHeader {
			return h, nil, errDamaged
		}
	}
	if err := json.Unmarshal(line, &h); err != nil {
		return h, nil, errDamaged
	}
	return h, line, nil
}

// writer writes a snapshot.
type writer struct {
	*tar.Writer
	zstd *zstd.Encoder
	age  io.WriteCloser // nil without encryption

	progress func(done, total int64) // of a file; may be nil
}

// newWriter writes the header. The snapshot is complete when Close has returned.
func newWriter(w io.Writer, h Header, to []age.Recipient) (*writer, error) {
	line, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	line = append(line, '\n')
	if _, err := io.WriteString(w, magic+string(line)); err != nil {
		return nil, err
	}
	out := &writer{}
	if len(to) > 0 {
		if out.age, err = age.Encrypt(w, to...); err != nil {
			return nil, err
		}
		w = out.age
	}
	if out.zstd, err = zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)); err != nil {
		return nil, err
	}
	out.Writer = tar.NewWriter(out.zstd)
	return out, out.content(headerEntry, line, h.Created)
}

func (w *writer) content(name string, content []byte, modified time.Time) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(content)), ModTime: modified}); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

// file adds a regular file. One that is gone is left out.
func (w *writer) file(name, path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: int64(info.Mode().Perm()), Size: info.Size(), ModTime: info.ModTime()}); err != nil {
		return err
	}
	const step = 1 << 20
	for done := int64(0); done < info.Size(); {
		n, err := io.CopyN(w, f, min(step, info.Size()-done))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if done += n; w.progress != nil {
			w.progress(done, info.Size())
		}
	}
	return nil
}

// Close writes what is left.
func (w *writer) Close() error {
	err := w.Writer.Close()
	if err == nil {
		err = w.zstd.Close()
	}
	if err == nil && w.age != nil {
		err = w.age.Close()
	}
	return err
}

// unpack writes the files of a snapshot below a directory that exists, with mode 0600 or, where they can be executed,
// 0700. accept, if it is not nil, sees the header before.
func unpack(r io.Reader, keys []age.Identity, dir string, accept func(Header) error) (Header, error) {
	in := bufio.NewReaderSize(r, 1<<20)
	h, line, err := readHeader(in)
	if err != nil {
		return h, err
	}
	if accept != nil {
		if err := accept(h); err != nil {
			return h, err
		}
	}
	var body io.Reader = in
	if h.Encryption != "" {
		if len(keys) == 0 {
			return h, fmt.Errorf("it is encrypted with a %s: give --passphrase-file or --identity", h.Encryption)
		}
		body, err = age.Decrypt(in, keys...)
		var wrong *age.NoIdentityMatchError
		switch {
		case errors.As(err, &wrong):
			return h, errKey
		case err != nil:
			return h, errDamaged
		}
	}
	plain, err := zstd.NewReader(body, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return h, err
	}
	defer plain.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return h, err
	}
	defer root.Close()
	archive := tar.NewReader(plain)
	seen := map[string]bool{}
	for {
		entry, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return h, errDamaged
		}
		name := path.Clean(entry.Name)
		if entry.Typeflag != tar.TypeReg || !filepath.IsLocal(name) || len(seen) == 0 && name != headerEntry {
			return h, errDamaged
		}
		seen[name] = true
		if err := unpackFile(root, name, entry, archive); err != nil {
			return h, err
		}
	}
	// The archive's end is not the file's: what follows is checked, too.
	if _, err := io.Copy(io.Discard, plain); err != nil {
		return h, errDamaged
	}
	if rest, err := in.Peek(1); len(rest) > 0 || !errors.Is(err, io.EOF) {
		return h, errDamaged
	}
	inner, err := root.ReadFile(headerEntry)
	if err != nil || !bytes.Equal(inner, line) || !seen[databaseEntry] {
		return h, errDamaged
	}
	return h, nil
}

func unpackFile(root *os.Root, name string, entry *tar.Header, content io.Reader) error {
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	mode := fs.FileMode(0o600)
	if entry.Mode&0o100 != 0 {
		mode = 0o700
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, content); err != nil {
		var disk *fs.PathError
		if errors.As(err, &disk) {
			return err
		}
		return errDamaged
	}
	return f.Sync()
}
