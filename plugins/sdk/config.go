package sdk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/go-hclog"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// Config is what the host tells a plugin about itself, and the operator's `config:`.
type Config struct {
	Name     string // of the plugin in the operator's configuration
	NodeName string // that the plugin runs on
	DataDir  string // a directory of its own that outlives the process
	JSON     []byte // `config:`; empty when there is none
	// Log goes to the node's log, with the plugin's name.
	Log hclog.Logger
}

// Decode reads `config:` into a struct with json tags, as a Configure does. A key that the struct lacks is an error:
// it would be a setting that its author believes to be in force. Without `config:` the struct stays as it is.
func (c Config) Decode(into any) error {
	if len(c.JSON) == 0 {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(c.JSON))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("config: more than one value")
	}
	return nil
}

// configOf is what a request to describe itself says.
func configOf(r *pluginv1.DescribeRequest) Config {
	return Config{Name: r.GetName(), NodeName: r.GetNodeName(), DataDir: r.GetDataDir(), JSON: r.GetConfig(), Log: newLog()}
}
