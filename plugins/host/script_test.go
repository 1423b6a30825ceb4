package host

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/process"
)

// TestScriptWithChecksum: what the interpreter reads is what was checked, though it opens the script itself: the file
// that has taken its place meanwhile is not run.
func TestScriptWithChecksum(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "script")
	write := func(version string) string {
		content := "#!/bin/sh\n" + modeVariable + "=serve " + versionVariable + "=" + version + " exec " + self + "\n"
		if err := os.WriteFile(path+".new", []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte(content))
		return hex.EncodeToString(sum[:])
	}
	h := startHost(t)
	for _, checked := range []bool{true, false} {
		spec := process.Spec{Name: "script", Kind: plugins.Admission, Path: path}
		sum := write("good")
		if checked {
			spec.SHA256 = sum
		}
		exe, err := process.Verify(&spec, "")
		if err != nil {
			t.Fatal(err)
		}
		write("evil")
		p, err := h.launcher.Start(t.Context(), &spec, exe)
		if err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{true: "good", false: "evil"}[checked] // without a checksum any content may run
		if got := p.Description().GetVersion(); got != want {
			t.Errorf("checked: %v: the script %q runs, want %q", checked, got, want)
		}
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
}
