package profile

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestWith(t *testing.T) {
	defaults := []string{"audit-log-path=/a", "enable-admission-plugins=A", "tls-cipher-suites=X,Y"}
	for name, c := range map[string]struct{ given, want []string }{
		"nothing given":                  {nil, defaults},
		"another flag":                   {[]string{"v=1"}, append(slices.Clone(defaults), "v=1")},
		"the same flag takes precedence": {[]string{"tls-cipher-suites=Z"}, []string{"audit-log-path=/a", "enable-admission-plugins=A", "tls-cipher-suites=Z"}},
		"in another spelling":            {[]string{"--audit_log_path=-"}, []string{"enable-admission-plugins=A", "tls-cipher-suites=X,Y", "--audit_log_path=-"}},
		"admission plugins add up":       {[]string{"enable-admission-plugins=B"}, append(slices.Clone(defaults), "enable-admission-plugins=B")},
	} {
		if got := With(defaults, c.given); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := With(Of("", "/d").APIServer, []string{"v=1"}); !slices.Equal(got, []string{"v=1"}) {
		t.Errorf("without a profile: %q", got)
	}
}

// TestFiles: every file that an argument names below the directory exists after Write, for its owner alone, or its
// directory exists.
func TestFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "profile")
	for range 2 { // the second time over the files of an older release
		if err := Write(CIS, dir); err != nil {
			t.Fatal(err)
		}
	}
	found := 0
	for _, argument := range Of(CIS, dir).APIServer {
		_, path, _ := strings.Cut(argument, "=")
		if !strings.HasPrefix(path, dir) {
			continue
		}
		found++
		if strings.HasSuffix(path, ".log") {
			path = filepath.Dir(path)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", argument, info, err)
		}
	}
	if found != 3 {
		t.Errorf("%d arguments name files, not 3", found)
	}
	empty := filepath.Join(t.TempDir(), "none")
	if err := Write("", empty); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(empty); err == nil {
		t.Error("a server without a profile has its directory")
	}
}
