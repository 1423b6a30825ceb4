package store

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"syscall"
)

// A store can be used over a socket, by a client that has no credentials: Handler serves it, Remote uses it. Each
// method of Store is a POST of its name. The arguments are in the query, and content in the body. An answer with
// another status than 200 has a failure.

// The arguments.
const (
	argVolume, argKey, argTo, argTag            = "volume", "key", "to", "tag"
	argOffset, argLength, argRec, argMeta       = "offset", "length", "recursive", "meta"
	opCheck, opStat, opList, opRead             = "/check", "/stat", "/list", "/read"
	opPut, opCopy, opDelete                     = "/put", "/copy", "/delete"
	maxKey                                      = 4096
	maxRead                               int64 = 4 << 20
)

// listed is a line of the answer to list: an object, or at the end its result.
type listed struct {
	Key     []byte   `json:"key,omitempty"` // any bytes
	Info    *Info    `json:"info,omitempty"`
	Failure *failure `json:"failure,omitempty"`
}

// failure is an error that has crossed the socket.
type failure struct {
	Message string        `json:"message"`
	Kind    string        `json:"kind,omitempty"` // of an error that this package names
	Errno   syscall.Errno `json:"errno,omitempty"`
}

func (f *failure) Error() string { return f.Message }

// kinds are the errors that this package names.
var kinds = map[string]error{"not-exist": ErrNotExist, "changed": ErrChanged, "full": ErrFull}

// Is makes it equal to the error that it was.
func (f *failure) Is(target error) bool {
	if errno, ok := target.(syscall.Errno); ok {
		return errno == f.Errno
	}
	return f.Kind != "" && kinds[f.Kind] == target
}

// As returns the error number.
func (f *failure) As(target any) bool {
	errno, ok := target.(*syscall.Errno)
	if ok && f.Errno != 0 {
		*errno = f.Errno
	}
	return ok && f.Errno != 0
}

func failureOf(err error) *failure {
	f := &failure{Message: err.Error()}
	for kind, e := range kinds {
		if errors.Is(err, e) {
			f.Kind = kind
		}
	}
	errors.As(err, &f.Errno)
	return f
}

// fail answers with an error.
func fail(w http.ResponseWriter, err error) {
	w.WriteHeader(http.StatusUnprocessableEntity)
	_ = json.NewEncoder(w).Encode(failureOf(err)) // if that fails, the client is gone
}

// validKey reports whether a key can be one: a path without parts that lead elsewhere.
func validKey(key string) bool {
	if key == "" {
		return true
	}
	if len(key) > maxKey || strings.ContainsRune(key, 0) {
		return false
	}
	for part := range strings.SplitSeq(strings.TrimSuffix(key, "/"), "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return true
}
