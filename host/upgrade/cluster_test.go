package upgrade

import (
	"errors"
	"testing"
)

// TestReporting: the result is stored under its ID however the upgrade ends, and until then it is under way.
func TestReporting(t *testing.T) {
	dir := t.TempDir()
	if r, err := ReadResult(dir); err != nil || r != (Result{}) || UnderWay(dir) {
		t.Errorf("before any: %v, %v", r, err)
	}
	for id, failed := range map[string]error{"a": nil, "b": errors.New("went\nback")} {
		err := Reporting(dir, id, func() error {
			if !UnderWay(dir) {
				t.Error("it is not under way")
			}
			if again := Reporting(dir, "c", func() error { t.Error("two at once"); return nil }); again == nil {
				t.Error("a second one is not refused")
			}
			return failed
		})
		if !errors.Is(err, failed) {
			t.Errorf("%s: %v", id, err)
		}
		want := Result{ID: id}
		if failed != nil {
			want.Error = "went back"
		}
		if r, err := ReadResult(dir); err != nil || r != want || UnderWay(dir) {
			t.Errorf("%s: %v, %v", id, r, err)
		}
	}
}
