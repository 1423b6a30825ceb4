package args

import (
	"io"
	"testing"

	"github.com/spf13/pflag"
)

// FuzzApplyTo applies an argument that an operator may give: a refused flag is refused in any spelling.
func FuzzApplyTo(f *testing.F) {
	for _, kv := range []string{"number=1", "number=x", "--list=a,\"b\n", "re_fused=1", " -refused=", "map=a=b,c", "=", "", "numbr=1"} {
		f.Add(kv)
	}
	f.Fuzz(func(t *testing.T, kv string) {
		fs := pflag.NewFlagSet("f", pflag.ContinueOnError)
		fs.SetOutput(io.Discard)
		fs.Int("number", 0, "")
		fs.StringSlice("list", nil, "")
		fs.StringToString("map", nil, "")
		refused := fs.String("re-fused", "", "")
		fs.String("refused", "", "")
		ApplyTo("--x-arg", fs, Refused{"re-fused": "no", "refused": "no"}, []string{kv})
		if *refused != "" || fs.Changed("re-fused") || fs.Changed("refused") {
			t.Errorf("%q set a flag that is refused", kv)
		}
	})
}
