package host

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/encoding/protojson"

	"kubelith.io/kubelith/components/pki"
	"kubelith.io/kubelith/plugins"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// descriptions keeps what plugins last said of themselves. After a start, those who call a plugin need its rules before it runs:
// requests that it should see would pass it by.
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

func (d descriptions) file(spec *Spec) string {
	return filepath.Join(d.dir, spec.Name+".json")
}

// load returns nil where there is none that is of use: an empty or damaged file is as good as none.
func (d descriptions) load(spec *Spec) *pluginv1.Description {
	content, err := os.ReadFile(d.file(spec))
	if err != nil {
		return nil // it never ran
	}
	out, err := d.parse(spec, content)
	if err != nil {
		d.log.WithField("plugin", spec.Name).WithError(err).Debug("its last description is of no use")
		return nil
	}
	return out
}

func (d descriptions) parse(spec *Spec, content []byte) (*pluginv1.Description, error) {
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
	if err := checkKind(spec.Kind, out); err != nil {
		return nil, err
	}
	if validate := d.validate[spec.Kind]; validate != nil {
		return out, validate(spec.Name, out)
	}
	return out, nil
}

// save replaces the file as a whole.
func (d descriptions) save(spec *Spec, description *pluginv1.Description) {
	if err := d.write(spec, description); err != nil {
		d.log.WithField("plugin", spec.Name).WithError(err).Warn("its description is not kept for the next start")
	}
}

func (d descriptions) write(spec *Spec, description *pluginv1.Description) error {
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
	return pki.WriteFile(d.file(spec), content) // as durable as a key: without it after a power cut, requests are held or pass by
}
