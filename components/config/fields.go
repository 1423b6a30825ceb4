package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// field is one row of the table that Server's struct tags are.
type field struct {
	key   string // in the file
	flag  string // on the command line, without dashes
	usage string
	index int // in Server
}

// fields reads the table.
func fields() []field {
	t := reflect.TypeFor[Server]()
	fs := make([]field, 0, t.NumField())
	for i := range t.NumField() {
		tag := t.Field(i).Tag
		fs = append(fs, field{key: tag.Get("json"), flag: tag.Get("flag"), usage: tag.Get("usage"), index: i})
	}
	return fs
}

// in returns the field of s, settable.
func (f field) in(s *Server) reflect.Value { return reflect.ValueOf(s).Elem().Field(f.index) }

// label names the setting with this key in messages, by its flag and its key.
func label(key string) string {
	for _, f := range fields() {
		if f.key == key {
			return "--" + f.flag + " (" + key + ")"
		}
	}
	panic("config: no field " + key) // a typing error in this package; every label is exercised by its tests
}

// configFlag names the file; it is the one flag without a field.
const configFlag = "config"

// Flags returns the flags of `kubelith server`: --config and one for each field of Server.
func Flags() []cli.Flag { return flags(func(field) bool { return true }) }

// DirFlags returns the flags that say where things are, for the commands that work on what a server
// left behind (ctr, reset), and those of further keys of the file. They are read with Load as well.
func DirFlags(more ...string) []cli.Flag {
	keys := append([]string{"dataDir", "runDir", "kubeletRootDir"}, more...)
	return flags(func(f field) bool { return slices.Contains(keys, f.key) })
}

func flags(want func(field) bool) []cli.Flag {
	out := []cli.Flag{&cli.StringFlag{Name: configFlag, Usage: "YAML file with the same settings", Value: DefaultFile}}
	def := Default()
	for _, f := range fields() {
		if !want(f) {
			continue
		}
		switch v := f.in(def).Interface().(type) {
		case string:
			out = append(out, &cli.StringFlag{Name: f.flag, Usage: f.usage, Value: v})
		case int:
			out = append(out, &cli.IntFlag{Name: f.flag, Usage: f.usage, Value: v})
		case []string:
			out = append(out, &cli.GenericFlag{Name: f.flag, Usage: f.usage + "; repeat it or separate by commas",
				Value: &list{values: v, commas: true}})
		case Args:
			out = append(out, &cli.GenericFlag{Name: f.flag, Usage: f.usage + "; may be repeated", Value: &list{values: v}})
		}
	}
	return out
}

// fromFlags overwrites s with the flags that were given.
func (s *Server) fromFlags(c *cli.Context) {
	for _, f := range fields() {
		if !c.IsSet(f.flag) {
			continue
		}
		v := f.in(s)
		switch v.Interface().(type) {
		case string:
			v.SetString(c.String(f.flag))
		case int:
			v.SetInt(int64(c.Int(f.flag)))
		default:
			v.Set(reflect.ValueOf(c.Generic(f.flag).(*list).values).Convert(v.Type()))
		}
	}
}

// list is the value of a flag that may be repeated. cli.StringSlice is not used because whether it splits
// at commas is one setting for the whole program.
type list struct {
	values []string // the default until Set is called
	commas bool     // a comma separates values
	given  bool
}

var _ cli.Generic = (*list)(nil)

// Set adds one occurrence of the flag; the first one replaces the default.
func (l *list) Set(s string) error {
	if !l.given {
		l.values, l.given = nil, true
	}
	if !l.commas {
		l.values = append(l.values, s)
		return nil
	}
	for v := range strings.SplitSeq(s, ",") {
		if v = strings.TrimSpace(v); v != "" { // so that --disable "" empties the file's list
			l.values = append(l.values, v)
		}
	}
	return nil
}

func (l *list) String() string { return strings.Join(l.values, ",") }
