package host

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/encoding/protojson"

	"kubelith.io/kubelith/base/atomicfile"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/process"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// descriptions stores the last description of each plugin. After a start its callers need its rules before it runs:
// requests that it should see would bypass it.
type descriptions struct {
	dir      string
	validate map[plugins.Kind]func(string, *pluginv1.Description) error
	log      *logrus.Entry
}

// stored is the file of a plugin.
type stored struct {
	Kind        plugins.Kind    `json:"kind"`
	Description json.RawMessage `json:"description"` // as protojson
}

func (d descriptions) file(spec *process.Spec) string {
	return filepath.Join(d.dir, spec.Name+".json")
}

// load returns the stored description; nil if there is none, or if the file is empty, damaged or of another kind.
func (d descriptions) load(spec *process.Spec) *pluginv1.Description {
	content, err := os.ReadFile(d.file(spec))
	if err != nil {
		return nil // it never ran
	}
	out, err := d.parse(spec, content)
	if err != nil {
		d.log.WithField("plugin", spec.Name).WithError(err).Debug("cannot use its last description")
		return nil
	}
	return out
}

func (d descriptions) parse(spec *process.Spec, content []byte) (*pluginv1.Description, error) {
	var s stored
	if err := json.Unmarshal(content, &s); err != nil {
		return nil, err
	}
	if s.Kind != spec.Kind {
		return nil, errors.New("it is of another kind")
	}
	out := &pluginv1.Description{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(s.Description, out); err != nil {
		return nil, err
	}
	if err := process.CheckKind(spec.Kind, out); err != nil {
		return nil, err
	}
	if validate := d.validate[spec.Kind]; validate != nil {
		return out, validate(spec.Name, out)
	}
	return out, nil
}

// save replaces the file atomically. A failure is logged.
func (d descriptions) save(spec *process.Spec, description *pluginv1.Description) {
	if err := d.write(spec, description); err != nil {
		d.log.WithField("plugin", spec.Name).WithError(err).Warn("cannot store its description for the next start")
	}
}

func (d descriptions) write(spec *process.Spec, description *pluginv1.Description) error {
	text, err := protojson.Marshal(description)
	if err != nil {
		return err
	}
	content, err := json.Marshal(stored{spec.Kind, text})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	return atomicfile.Write(d.file(spec), content) // as durable as a key: if a power cut loses it, requests fail or bypass the plugin
}
