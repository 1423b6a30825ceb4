package sdk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
)

// Patch admits a request with a changed object: changed is what Object returned, edited. The answer contains the
// differences only, so fields that T does not have are kept.
func Patch[T any](r *admissionv1.AdmissionRequest, changed *T) Response {
	patch, err := patchOf(r, changed)
	if err != nil {
		return Fail(err)
	}
	response := Allow()
	if len(patch) > 0 {
		kind := admissionv1.PatchTypeJSONPatch
		response.Patch, response.PatchType = patch, &kind
	}
	return response
}

// operation is one operation of a JSON patch.
// Source: RFC 6902
type operation struct {
	Op, Path string
	Value    any
}

// MarshalJSON implements json.Marshaler. It writes null values too: only remove has no value.
func (o operation) MarshalJSON() ([]byte, error) {
	if o.Op == "remove" {
		return json.Marshal(map[string]any{"op": o.Op, "path": o.Path})
	}
	return json.Marshal(map[string]any{"op": o.Op, "path": o.Path, "value": o.Value})
}

// patchOf returns the JSON patch from the request's object to changed; nil if they are equal.
func patchOf[T any](r *admissionv1.AdmissionRequest, changed *T) ([]byte, error) {
	before, err := Object[T](r.Object)
	if err != nil {
		return nil, err
	}
	// Both go through T, so that what T writes for empty fields, or drops because it has no such field, is the same in
	// both.
	old, err := tree(before)
	if err != nil {
		return nil, err
	}
	want, err := tree(changed)
	if err != nil {
		return nil, err
	}
	// The patch applies to the host's object, which is the request's JSON. Objects in protobuf have no fields that T
	// does not have.
	have := old
	if !bytes.HasPrefix(r.Object.Raw, protobufMagic) {
		if have, err = decode(r.Object.Raw); err != nil {
			return nil, err
		}
	}
	operations := diff(nil, "", have, old, want)
	if len(operations) == 0 {
		return nil, nil
	}
	return json.Marshal(operations)
}

// tree returns a value as decoded JSON: maps, slices, strings, numbers.
func tree(value any) (any, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", value, err)
	}
	return decode(text)
}

func decode(text []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // 64 bits do not fit into a float
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	if value == nil {
		return nil, errors.New("the object is null")
	}
	return value, nil
}

// diff appends the operations that apply the differences between old and want to have, the value at path.
func diff(operations []operation, path string, have, old, want any) []operation {
	if reflect.DeepEqual(old, want) {
		return operations
	}
	switch want := want.(type) {
	case map[string]any:
		oldMap, ok := old.(map[string]any)
		if haveMap, both := have.(map[string]any); ok && both {
			return diffMaps(operations, path, haveMap, oldMap, want)
		}
	case []any:
		oldList, ok := old.([]any)
		haveList, both := have.([]any)
		if ok && both && len(haveList) == len(oldList) && inPlace(oldList, want) {
			for i := range oldList {
				operations = diff(operations, path+"/"+strconv.Itoa(i), haveList[i], oldList[i], want[i])
			}
			for _, added := range want[len(oldList):] {
				operations = append(operations, operation{Op: "add", Path: path + "/-", Value: added})
			}
			return operations
		}
	}
	return append(operations, operation{Op: "replace", Path: path, Value: want})
}

// inPlace reports whether the elements of old have kept their places in want, so that others were at most appended.
func inPlace(old, want []any) bool {
	if len(want) < len(old) {
		return false
	}
	for i := range old {
		before, ok := old[i].(map[string]any)
		after, both := want[i].(map[string]any)
		if ok && both && !reflect.DeepEqual(before["name"], after["name"]) {
			return false
		}
	}
	return true
}

func diffMaps(operations []operation, path string, have, old, want map[string]any) []operation {
	keys := make([]string, 0, len(old)+len(want))
	for key := range old {
		keys = append(keys, key)
	}
	for key := range want {
		if _, ok := old[key]; !ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		at := path + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
		haveValue, inHave := have[key]
		oldValue, inOld := old[key]
		wantValue, inWant := want[key]
		switch {
		case !inWant && inHave:
			operations = append(operations, operation{Op: "remove", Path: at})
		case inWant && inHave && inOld:
			operations = diff(operations, at, haveValue, oldValue, wantValue)
		case inWant && !(inOld && reflect.DeepEqual(oldValue, wantValue)):
			operations = append(operations, operation{Op: "add", Path: at, Value: wantValue})
		}
	}
	return operations
}
