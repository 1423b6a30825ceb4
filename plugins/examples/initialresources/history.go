package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"sync"
	"time"
)

const (
	maxImages = 1000                // of which usage is known; the one that has not run for longest gives way
	forgotten = 30 * 24 * time.Hour // since an image last ran
)

// image of containers in a namespace, with the name that pods give it.
type image struct{ Namespace, Name string }

// usage of the containers of an image.
type usage struct {
	CPU    histogram `json:"cpu"`
	Memory histogram `json:"memory"`
	At     time.Time `json:"at"` // the last sample; the weights are those of then
}

// history is what containers have used.
type history struct {
	halfLife time.Duration

	mu      sync.Mutex
	images  map[image]*usage
	samples int64 // since the start
	unsaved bool
}

func newHistory(halfLife time.Duration) *history {
	return &history{halfLife: halfLife, images: map[image]*usage{}}
}

// factor by which weights of one time are to be multiplied at another.
func (h *history) factor(from, to time.Time) float64 {
	return math.Exp2(-max(0, to.Sub(from).Hours()/h.halfLife.Hours()))
}

// add adds a sample: thousandths of a core, and bytes.
func (h *history) add(i image, cpu, memory int64, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	u := h.images[i]
	if u == nil {
		h.makeRoom(at)
		u = &usage{CPU: histogram{}, Memory: histogram{}, At: at}
		h.images[i] = u
	}
	if at.After(u.At) {
		factor := h.factor(u.At, at)
		u.CPU.decay(factor)
		u.Memory.decay(factor)
		u.At = at
	}
	u.CPU.add(cpu, cpuScale)
	u.Memory.add(memory, memoryScale)
	h.samples++
	h.unsaved = true
}

// makeRoom forgets images for one more.
func (h *history) makeRoom(now time.Time) {
	var oldest image
	var at time.Time
	for i, u := range h.images {
		if now.Sub(u.At) > forgotten {
			delete(h.images, i)
		} else if at.IsZero() || u.At.Before(at) {
			oldest, at = i, u.At
		}
	}
	if len(h.images) >= maxImages {
		delete(h.images, oldest)
	}
}

// sum is the usage of all images that match.
func (h *history) sum(matches func(image) bool, now time.Time) usage {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := usage{CPU: histogram{}, Memory: histogram{}}
	for i, u := range h.images {
		if matches(i) && now.Sub(u.At) <= forgotten {
			factor := h.factor(u.At, now)
			all.CPU.merge(u.CPU, factor)
			all.Memory.merge(u.Memory, factor)
		}
	}
	return all
}

func (h *history) size() (images int, samples int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.images), h.samples
}

// stored is the content of the file.
type stored struct {
	Version int           `json:"version"`
	Images  []storedImage `json:"images"`
}

type storedImage struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	usage
}

// load reads the file, if there is one.
func (h *history) load(path string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var s stored
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if s.Version != 1 || len(s.Images) > maxImages {
		return fmt.Errorf("%s: it has version %d and %d images", path, s.Version, len(s.Images))
	}
	images := map[image]*usage{}
	for _, i := range s.Images {
		if err := errors.Join(i.CPU.check(), i.Memory.check()); err != nil {
			return fmt.Errorf("%s: %s: %w", path, i.Name, err)
		}
		u := i.usage
		if u.CPU == nil || u.Memory == nil {
			return fmt.Errorf("%s: %s has no histogram", path, i.Name)
		}
		images[image{i.Namespace, i.Name}] = &u
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.images = images
	return nil
}

// save replaces the file, unless it is up to date.
func (h *history) save(path string) error {
	text, err := h.encode()
	if err != nil || text == nil {
		return err
	}
	if err := replace(path, text); err != nil {
		h.mu.Lock()
		h.unsaved = true
		h.mu.Unlock()
		return err
	}
	return nil
}

func (h *history) encode() ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.unsaved {
		return nil, nil
	}
	h.unsaved = false
	s := stored{Version: 1}
	for i, u := range h.images {
		s.Images = append(s.Images, storedImage{i.Namespace, i.Name, *u})
	}
	return json.Marshal(s)
}

func replace(path string, text []byte) error {
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}
