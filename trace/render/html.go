package render

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"io"
	"strings"

	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/record"
)

//go:embed page
var page embed.FS

// part returns a file of the page.
func part(name string) string {
	text, err := page.ReadFile("page/page." + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(text)
}

// HTML writes a page with timelines, which needs nothing else. With live it requests timelines itself: the paths recent
// and timeline beside its own (`kubelith trace --serve`).
//
// Timelines are data in it, as JSON in which no character can end the script block; the page makes text of it. Its
// policy lets the browser run the page's own script only, and load nothing.
func HTML(w io.Writer, timelines []*trace.Timeline, live bool) error {
	if timelines == nil {
		timelines = []*trace.Timeline{}
	}
	data, err := json.Marshal(struct {
		Timelines []*trace.Timeline       `json:"timelines"`
		Live      bool                    `json:"live"`
		About     map[record.Stage]string `json:"about"`
	}{timelines, live, about}) // with <, > and & as escapes
	if err != nil {
		return err
	}
	style, script := part("css"), part("js")
	policy := "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; style-src " + hash(style) + "; script-src " + hash(script)
	if live {
		policy += "; connect-src 'self'"
	}
	_, err = strings.NewReplacer("{{policy}}", policy, "{{style}}", style, "{{data}}", string(data), "{{script}}", script).WriteString(w, part("html"))
	return err
}

// hash names a text in a policy.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
