// Package upgrader is the component "upgrader": it upgrades this node when `kubelith upgrade --cluster` asks for it.
//
//	command --annotation Request--> Node --> Server --GET names.UpgradesPath/SHA256--> a server
//	                                           |
//	                                           +-- kubelith upgrade FILE, a separate process, which restarts the service
//	command <--annotation Status--- Node <-----+-- its result, a file
//
// Users who may write the annotation decide when a node is upgraded, but not to what: the file must be one that root on
// a server has put there.
package upgrader

import (
	"encoding/hex"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"kubelith.io/kubelith/base/names"
)

const (
	// RequestAnnotation has a Request in JSON, StatusAnnotation the node's Status.
	RequestAnnotation = "kubelith.io/upgrade"
	StatusAnnotation  = "kubelith.io/upgrade-status"
)

// Request asks a node to upgrade.
type Request struct {
	// ID tells one request from another for the same file.
	ID     string `json:"id"`
	SHA256 string `json:"sha256"`
	// Within is how long the node may take to become Ready, as a Go duration.
	Within string `json:"within"`
	// Ask only asks whether the node has the program: Status.Has. There is no Within then: a release that does not know
	// Ask refuses it.
	Ask bool `json:"ask,omitempty"`
}

// Status is what a node reports about itself.
type Status struct {
	// Cannot is why it cannot be upgraded; empty if it can.
	Cannot string `json:"cannot,omitempty"`
	// ID is that of the last request that has ended; Error is why it failed.
	ID    string `json:"id,omitempty"`
	Error string `json:"error,omitempty"`
	// Has reports whether the node has the program that the request asked for.
	Has bool `json:"has,omitempty"`
}

// StatusOf returns the status of a Node's annotations. A release without this component has none.
func StatusOf(annotations map[string]string) (s Status, found bool) {
	return s, json.Unmarshal([]byte(annotations[StatusAnnotation]), &s) == nil
}

// requestOf returns the request of a Node's annotations; nil without one that can be read.
func requestOf(annotations map[string]string) *Request {
	var r Request
	if json.Unmarshal([]byte(annotations[RequestAnnotation]), &r) != nil || r.ID == "" || !isSum(r.SHA256) {
		return nil
	}
	return &r
}

// isSum reports whether a text is a SHA-256, and so no path.
func isSum(text string) bool {
	sum, err := hex.DecodeString(text)
	return err == nil && len(sum) == 32 && strings.ToLower(text) == text
}

// Dir has the files and results of upgrades, for root only.
func Dir(dataDir string) string { return filepath.Join(dataDir, "upgrades") }

// File is the program with a checksum.
func File(dataDir, sum string) string { return filepath.Join(Dir(dataDir), sum) }

// Handler serves names.UpgradesPath from a data directory, and passes on other requests. Requests have been authorized.
func Handler(dataDir string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sum, ours := strings.CutPrefix(r.URL.Path, names.UpgradesPath)
		switch {
		case !ours:
			next.ServeHTTP(w, r)
		case r.Method != http.MethodGet:
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
		case !isSum(sum):
			http.NotFound(w, r)
		default:
			serve(w, r, File(dataDir, sum))
		}
	})
}

func serve(w http.ResponseWriter, r *http.Request, file string) {
	f, err := os.Open(file)
	if err != nil {
		http.Error(w, "this server does not have the file", http.StatusNotFound)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", info.ModTime(), f)
}
