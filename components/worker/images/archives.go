package images

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"

	"kubelith.io/kubelith/base/atomicfile"
)

// recordName is the file in ArchiveDir that lists the imported archives. Losing it costs only another import.
const recordName = ".imported.json"

// stamp shows whether an archive has changed since it was imported.
type stamp struct {
	Size    int64     `json:"size"`
	ModTime time.Time `json:"modTime"`
	// Images are the digests by name: an image that the kubelet removed is imported again.
	Images map[string]string `json:"images"`
}

// importArchives imports the new archives in ArchiveDir. A failure is logged, and has no other effect.
func (s *Server) importArchives(ctx context.Context, store *store) {
	log := s.opts.Log
	if err := os.MkdirAll(s.opts.ArchiveDir, 0o755); err != nil {
		log.WithError(err).Error("image archives cannot be imported")
		return
	}
	entries, err := os.ReadDir(s.opts.ArchiveDir)
	if err != nil {
		log.WithError(err).Error("image archives cannot be imported")
		return
	}
	recordPath := filepath.Join(s.opts.ArchiveDir, recordName)
	record := readRecord(recordPath)
	present := map[string]stamp{}
	for _, e := range entries {
		path := filepath.Join(s.opts.ArchiveDir, e.Name())
		base, ok := archiveBase(e.Name())
		if !ok {
			if !strings.HasPrefix(e.Name(), ".") {
				log.Warnf("%s is not an image archive (.tar, .tar.gz, .tgz, .tar.zst), skipped", path)
			}
			continue
		}
		st, imported, err := s.importFile(ctx, store, path, base, record[e.Name()])
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			log.WithError(err).Errorf("image archive %s was not imported", path)
			continue
		}
		present[e.Name()] = st
		if !imported {
			continue
		}
		log.Infof("imported image archive %s: %s", path, strings.Join(slices.Sorted(maps.Keys(st.Images)), ", "))
		record[e.Name()] = st
		if err := writeRecord(recordPath, record); err != nil {
			log.WithError(err).Warnf("%s will be imported again at the next start", path)
		}
	}
	if len(present) != len(record) { // archives were removed
		if err := writeRecord(recordPath, present); err != nil {
			log.WithError(err).Warn("cannot write the record of imported archives")
		}
	}
}

// importFile imports an archive unless, by its stamp, all of its images exist.
func (s *Server) importFile(ctx context.Context, store *store, path, base string, old stamp) (_ stamp, imported bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return stamp{}, false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return stamp{}, false, err
	}
	if !info.Mode().IsRegular() {
		return stamp{}, false, errors.New("not a regular file")
	}
	if info.Size() == old.Size && info.ModTime().Equal(old.ModTime) && len(old.Images) > 0 {
		missing, err := store.missing(ctx, old.Images)
		if err != nil || !missing {
			return old, false, err
		}
	}
	digests, err := store.importArchive(ctx, f, base)
	if err != nil {
		return stamp{}, false, err
	}
	return stamp{Size: info.Size(), ModTime: info.ModTime(), Images: digests}, true, nil
}

// archiveBase returns the file's name without the extension of an archive, and whether it has one.
func archiveBase(name string) (string, bool) {
	if strings.HasPrefix(name, ".") {
		return "", false
	}
	for _, ending := range []string{".tar", ".tar.gz", ".tgz", ".tar.zst"} {
		if base, ok := strings.CutSuffix(name, ending); ok && base != "" {
			return base, true
		}
	}
	return "", false
}

// fullName returns a function that turns an archive's name for an image into one that CRI looks up. Archives of docker
// or containerd have full names; some OCI archives have only a tag (as the specification of the annotation
// org.opencontainers.image.ref.name suggests), and the archive's own name then replaces the repository. An invalid name
// gives "": such an image is left out.
func fullName(base string) func(string) string {
	return func(name string) string {
		if !strings.ContainsAny(name, "/:@") {
			name = strings.ToLower(base) + ":" + name
		}
		named, err := reference.ParseDockerRef(name)
		if err != nil {
			return ""
		}
		return named.String()
	}
}

// readRecord returns an empty record when there is no readable one: everything is imported again.
func readRecord(path string) map[string]stamp {
	record := map[string]stamp{}
	content, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(content, &record) != nil {
		return map[string]stamp{}
	}
	return record
}

func writeRecord(path string, record map[string]stamp) error {
	content, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(content, '\n'))
}
