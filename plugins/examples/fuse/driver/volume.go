package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"kubelith.io/kubelith/plugins/examples/fuse/client"
	"kubelith.io/kubelith/plugins/examples/fuse/store"
)

// volume is the record of a volume, an object beside those of the volumes.
type volume struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	Mode mode   `json:"mode"`
}

// idPattern is what an id may be: part of keys, paths and names of objects.
var idPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// idOf the volume with a name. The same name has the same id.
func idOf(name string) string {
	if idPattern.MatchString(name) && !strings.Contains(name, "..") {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "v-" + hex.EncodeToString(sum[:16])
}

func recordKey(id string) string { return ".kubelith/volumes/" + id + ".json" }

// readVolume returns the record of a volume.
func readVolume(ctx context.Context, c store.Config, id string) (*volume, error) {
	if !idPattern.MatchString(id) {
		return nil, fmt.Errorf("volume %q: %w", id, store.ErrNotExist)
	}
	s, err := store.Open(c)
	if err != nil {
		return nil, err
	}
	i, err := s.Stat(ctx, recordKey(id))
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", id, err)
	}
	text := make([]byte, i.Size)
	if err := s.Read(ctx, recordKey(id), i.Tag, 0, text); err != nil {
		return nil, fmt.Errorf("volume %s: %w", id, err)
	}
	v := &volume{}
	if err := json.Unmarshal(text, v); err != nil {
		return nil, fmt.Errorf("volume %s: its record is damaged: %w", id, err)
	}
	return v, nil
}

func writeVolume(ctx context.Context, c store.Config, id string, v *volume) error {
	s, err := store.Open(c)
	if err != nil {
		return err
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = s.Put(ctx, recordKey(id), strings.NewReader(string(text)), int64(len(text)), store.Meta{Known: true, Mode: 0o600, Time: time.Now()})
	return err
}

// deleteVolume deletes the objects of a volume, then its record.
func deleteVolume(ctx context.Context, c store.Config, id string) error {
	s, err := store.Open(c.Sub(id))
	if err != nil {
		return err
	}
	keys := []string{""}
	if err := s.List(ctx, "", true, func(i store.Info) error { keys = append(keys, i.Key); return nil }); err != nil {
		return err
	}
	slices.Sort(keys)
	slices.Reverse(keys) // what is in a directory before the directory
	for _, key := range keys {
		if err := s.Delete(ctx, key); err != nil {
			return err
		}
	}
	top, err := store.Open(c)
	if err != nil {
		return err
	}
	return top.Delete(ctx, recordKey(id))
}

// configOf returns what a client of a volume has to know, and where it runs: of a static volume by its attributes, of
// another one by its record.
func configOf(ctx context.Context, c store.Config, id string, attributes map[string]string) (client.Config, mode, error) {
	if path, static := attributes[attributePath]; static {
		m, err := modeOf(attributes)
		if err != nil {
			return client.Config{}, "", invalid("%s", err)
		}
		config := client.Config{Store: c}
		if path = strings.Trim(path, "/"); path != "" {
			config.Store = c.Sub(path)
		}
		if text := attributes[attributeCapacity]; text != "" {
			q, err := resource.ParseQuantity(text)
			if err != nil || q.Value() <= 0 {
				return client.Config{}, "", invalid("the volume's attribute capacity %q is not a quantity above zero", text)
			}
			config.Capacity = q.Value()
		}
		return config, m, nil
	}
	v, err := readVolume(ctx, c, id)
	if err != nil {
		return client.Config{}, "", err
	}
	return client.Config{Store: c.Sub(id), Capacity: v.Size}, v.Mode, nil
}
