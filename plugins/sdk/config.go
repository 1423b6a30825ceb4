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

// Config is what a plugin needs to know at its start, with the operator's `config:`.
type Config struct {
	Name     string // of the plugin in the operator's configuration
	NodeName string // the node that the plugin runs on
	DataDir  string // the plugin's own directory, which outlives the process; empty if it runs as another user
	JSON     []byte // `config:`; empty if there is none
	// Log writes to the node's log, with the plugin's name.
	Log hclog.Logger
}

// Decode decodes `config:` into a struct with json tags; Configure functions use it. An unknown key is an error, so
// that a misspelled setting does not go unnoticed. Without `config:` the struct does not change.
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

// configOf returns the Config of a Describe request.
func configOf(r *pluginv1.DescribeRequest) Config {
	return Config{Name: r.GetName(), NodeName: r.GetNodeName(), DataDir: r.GetDataDir(), JSON: r.GetConfig(), Log: newLog()}
}
