package args

import (
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
)

func TestApply(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want []string // what the flags are afterwards: count, name, list
		err  []string // all of these are in the error
	}{
		{"nothing", nil, []string{"1", "", "[]"}, nil},
		{"values", []string{"count=7", "name=a=b,c", "list=x,y"}, []string{"7", "a=b,c", "[x,y]"}, nil},
		{"dashes and underscores", []string{"--the-name=x", "the_name=y"}, []string{"1", "", "[]"}, nil},
		{"last one counts", []string{"count=2", "count=3"}, []string{"3", "", "[]"}, nil},
		{"lists add up", []string{"list=x", "list=y"}, []string{"1", "", "[x,y]"}, nil},
		{"empty value", []string{"name="}, []string{"1", "", "[]"}, nil},
		{"deprecated", []string{"old=1"}, []string{"1", "", "[]"}, nil},
		{"no value", []string{"count"}, nil, []string{`--x-arg "count": give it as key=value`}},
		{"bad value", []string{"count=many"}, nil, []string{"--x-arg count:", "many"}},
		{"refused", []string{"mine=1"}, nil, []string{"--x-arg mine: cannot be set: we set it"}},
		{"refused with underscores", []string{"my_own=1"}, nil, []string{"cannot be set: ours as well"}},
		{"refused though unknown", []string{"gone=1"}, nil, []string{"cannot be set: it is gone"}},
		{"unknown, near", []string{"cuont=1"}, nil, []string{`unknown flag: did you mean "count"?`}},
		{"unknown, far", []string{"zzzzzzzzzz=1"}, nil, []string{"--x-arg zzzzzzzzzz: unknown flag"}},
		{"all errors at once", []string{"count=a", "nope=1", "mine=1"}, nil, []string{"count", "nope", "mine"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var sets cliflag.NamedFlagSets
			fs := sets.FlagSet("one")
			count, name := fs.Int("count", 1, ""), fs.String("name", "", "")
			fs.String("the-name", "", "")
			list := sets.FlagSet("two").StringSlice("list", nil, "")
			fs.Int("mine", 0, "")
			fs.Int("my-own", 0, "")
			fs.Int("old", 0, "")
			fs.MarkDeprecated("old", "use another")
			err := Apply("--x-arg", sets, Refused{"mine": "we set it", "my-own": "ours as well", "gone": "it is gone"}, c.args)
			if c.err == nil && err != nil {
				t.Fatal(err)
			}
			for _, part := range c.err {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("error %v does not say %q", err, part)
				}
			}
			if got := []string{fs.Lookup("count").Value.String(), *name, "[" + strings.Join(*list, ",") + "]"}; c.want != nil && !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %v (count %d), want %v", got, *count, c.want)
			}
		})
	}
}

func TestApplyWritesNothingToStderr(t *testing.T) {
	fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
	fs.Int("old", 0, "")
	fs.MarkDeprecated("old", "set it via the file of --config")
	var out strings.Builder
	fs.SetOutput(&out)
	if err := ApplyTo("--x-arg", fs, nil, []string{"old=1"}); err != nil || out.Len() > 0 {
		t.Errorf("error %v, written: %q", err, out.String())
	}
}

func TestGates(t *testing.T) {
	for _, c := range []struct {
		name   string
		lists  [][]string
		rest   [][]string
		global []string
		err    string
	}{
		{"none", [][]string{{"a=1"}, nil}, [][]string{{"a=1"}, nil}, nil, ""},
		{"one", [][]string{{"feature-gates=A=true"}}, [][]string{nil}, []string{"feature-gates=A=true"}, ""},
		{"merged and sorted", [][]string{{"feature-gates=C=true,A=false", "x=1"}, {"--feature-gates=B=true"}}, [][]string{{"x=1"}, nil}, []string{"feature-gates=A=false,B=true,C=true"}, ""},
		{"twice the same", [][]string{{"feature-gates=A=true"}, {"feature-gates=A=true"}}, [][]string{nil, nil}, []string{"feature-gates=A=true"}, ""},
		{"contradiction", [][]string{{"feature-gates=A=true"}, {"feature-gates=A=false"}}, nil, nil, "feature gate A is set to true and to false"},
		{"versions", [][]string{{"emulated-version=1.36", "y=2"}}, [][]string{{"y=2"}}, []string{"emulated-version=1.36"}, ""},
		{"underscores", [][]string{{"feature_gates=A=true"}}, [][]string{nil}, []string{"feature-gates=A=true"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			rest, global, err := Gates(c.lists...)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v, want %q", err, c.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(rest, c.rest) || !reflect.DeepEqual(global, c.global) {
				t.Errorf("got %v, %v, %v; want %v, %v", rest, global, err, c.rest, c.global)
			}
		})
	}
}

func TestKnownGates(t *testing.T) {
	known := map[string]int{"PodLevelResources": 1, "AllAlpha": 2}
	for given, want := range map[string]string{
		"feature-gates=AllAlpha=true,PodLevelResources=false": "",
		"feature-gates=kube:AllAlpha=true":                    "",
		"emulated-version=1.36":                               "",
		"feature-gates=PodLevelResorces=true":                 `unrecognized feature gate PodLevelResorces: did you mean "PodLevelResources"?`,
		"feature-gates=Xyz=true":                              "unrecognized feature gate Xyz",
	} {
		err := KnownGates([]string{given}, known)
		if (err == nil) != (want == "") || (err != nil && err.Error() != want) {
			t.Errorf("%s: error %v, want %q", given, err, want)
		}
	}
}

func TestMerge(t *testing.T) {
	a := Refused{"x": "1"}
	if got := Merge(a, Refused{"y": "2"}); !reflect.DeepEqual(got, Refused{"x": "1", "y": "2"}) || len(a) != 1 {
		t.Errorf("got %v, and %v is left", got, a)
	}
}
