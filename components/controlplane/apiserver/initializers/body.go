package initializers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// In JSON and YAML the state is in metadata.initializers: this file converts both ways.

// mentions finds out cheaply that a body has nothing to move.
var mentions = []byte("initializers")

// incoming moves metadata.initializers of a request's body into an annotation. The body is returned as it is when it
// has none, or is of a format that has no place for it.
func incoming(body []byte, contentType string) ([]byte, error) {
	if !bytes.Contains(body, mentions) {
		return body, nil
	}
	kind, _, err := mime.ParseMediaType(contentType)
	if err != nil && contentType != "" {
		return body, nil
	}
	switch types.PatchType(kind) {
	case "", "application/json", "application/yaml", types.ApplyPatchType:
		return incomingObject(body, kind)
	case types.MergePatchType, types.StrategicMergePatchType:
		return incomingPatch(body, types.PatchType(kind))
	case types.JSONPatchType:
		return incomingOperations(body)
	}
	return body, nil
}

func incomingObject(body []byte, kind string) ([]byte, error) {
	text := body
	if kind != "" && kind != "application/json" {
		var err error
		if text, err = yaml.YAMLToJSON(body); err != nil {
			return body, nil // the API server returns the error
		}
	}
	object, metadata := metadataOf(text)
	value, has := metadata["initializers"]
	if !has {
		return body, nil
	}
	delete(metadata, "initializers")
	if value != nil {
		state, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		if _, err := parse(state); err != nil {
			return nil, err
		}
		if err := annotate(metadata, Annotation, string(state)); err != nil {
			return nil, err
		}
	}
	return encode(object) // JSON is YAML
}

func incomingPatch(body []byte, kind types.PatchType) ([]byte, error) {
	object, metadata := metadataOf(body)
	value, has := metadata["initializers"]
	if !has {
		return body, nil
	}
	delete(metadata, "initializers")
	if err := annotateChange(metadata, kind, value); err != nil {
		return nil, err
	}
	return encode(object)
}

// incomingOperations takes the operations on metadata.initializers out of a JSON patch. A hidden object has
// annotations.
func incomingOperations(body []byte) ([]byte, error) {
	const at = "/metadata/initializers"
	var operations []map[string]any
	if decode(body, &operations) != nil {
		return body, nil
	}
	var own, others []map[string]any
	for _, o := range operations {
		path, _ := o["path"].(string)
		from, _ := o["from"].(string)
		inside := path == at || strings.HasPrefix(path, at+"/")
		if from != "" && inside != (from == at || strings.HasPrefix(from, at+"/")) {
			return nil, errors.New("metadata.initializers: nothing can be moved or copied between it and the rest of the object")
		}
		if !inside {
			others = append(others, o)
			continue
		}
		for _, name := range []string{"path", "from"} {
			if value, ok := o[name].(string); ok && value != "" {
				o[name] = strings.TrimPrefix(value, "/metadata")
			}
		}
		own = append(own, o)
	}
	if len(own) == 0 {
		return body, nil
	}
	holder := map[string]any{}
	if err := annotateChange(holder, types.JSONPatchType, own); err != nil {
		return nil, err
	}
	value := holder["annotations"].(map[string]any)[changeAnnotation]
	return encode(append(others, map[string]any{
		"op": "add", "path": "/metadata/annotations/" + strings.ReplaceAll(changeAnnotation, "/", "~1"), "value": value,
	}))
}

func annotateChange(metadata map[string]any, kind types.PatchType, value any) error {
	patch, err := json.Marshal(value)
	if err != nil {
		return err
	}
	text, err := json.Marshal(change{Type: kind, Patch: patch})
	if err != nil {
		return err
	}
	return annotate(metadata, changeAnnotation, string(text))
}

func annotate(metadata map[string]any, name, value string) error {
	annotations, ok := metadata["annotations"].(map[string]any)
	if !ok {
		if metadata["annotations"] != nil {
			return fmt.Errorf("metadata.annotations is not a map")
		}
		annotations = map[string]any{}
		metadata["annotations"] = annotations
	}
	annotations[name] = value
	return nil
}

// metadataOf returns nil maps for a text that is no object with metadata.
func metadataOf(text []byte) (object, metadata map[string]any) {
	if decode(text, &object) != nil {
		return nil, nil
	}
	metadata, _ = object["metadata"].(map[string]any)
	return object, metadata
}

// decode keeps numbers as they are written.
func decode(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(into)
}

func encode(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return out.Bytes(), err
}

// outgoing moves the annotation of each object in a JSON response to metadata.initializers: of an object, of the items
// of a list, of the rows of a table, of a watch event.
func outgoing(body []byte) []byte {
	if !bytes.Contains(body, []byte(Annotation)) {
		return body
	}
	var document map[string]any
	if decode(body, &document) != nil {
		return body
	}
	show(document)
	text, err := encode(document)
	if err != nil {
		return body
	}
	return text
}

func show(object map[string]any) {
	if metadata, ok := object["metadata"].(map[string]any); ok {
		if annotations, ok := metadata["annotations"].(map[string]any); ok {
			var state any
			if text, ok := annotations[Annotation].(string); ok && decode([]byte(text), &state) == nil {
				metadata["initializers"] = state
				delete(annotations, Annotation)
				if len(annotations) == 0 {
					delete(metadata, "annotations")
				}
			}
		}
	}
	if inner, ok := object["object"].(map[string]any); ok {
		show(inner)
	}
	for _, list := range []string{"items", "rows"} {
		items, _ := object[list].([]any)
		for _, item := range items {
			if o, ok := item.(map[string]any); ok {
				show(o)
			}
		}
	}
}
