package config

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// settings is one kind of configuration: *Server or *Agent.
type settings interface {
	kind() string              // in the file
	node() *Node               // the part that both share
	paths() map[string]*string // the fields that are paths, by key
	usages() map[string]string // the help of each flag
	disableable() []string     // what Disable may name
}

var (
	_ settings = (*Server)(nil)
	_ settings = (*Agent)(nil)
)

// field is one row of the table that the struct tags and usages of settings are.
type field struct {
	key   string // in the file; empty: only on the command line
	flag  string // on the command line, without dashes; empty: only in the file
	alias string // the flag's name in another distribution, usually none
	env   string // variable that also sets it, usually none
	usage string // its help
	index []int  // in its struct
}

// fields returns the table of s: its own fields and those of Node.
func fields(s settings) []field {
	var fs []field
	usages := s.usages()
	for _, f := range reflect.VisibleFields(reflect.TypeOf(s).Elem()) {
		key, flag := strings.TrimPrefix(f.Tag.Get("json"), "-"), f.Tag.Get("flag")
		if f.Anonymous || key == "" && flag == "" {
			continue
		}
		fs = append(fs, field{
			key:   key,
			flag:  flag,
			alias: f.Tag.Get("alias"),
			env:   f.Tag.Get("env"),
			usage: usages[flag],
			index: f.Index,
		})
	}
	return fs
}

func (f field) aliases() []string {
	if f.alias == "" {
		return nil
	}
	return []string{f.alias}
}

// name is the key or, for a setting that has none, the flag.
func (f field) name() string { return cmp.Or(f.key, f.flag) }

// in returns the field of s, settable.
func (f field) in(s settings) reflect.Value { return reflect.ValueOf(s).Elem().FieldByIndex(f.index) }

// label names the setting with this key in messages, by its flag and its key.
func label(key string) string {
	for _, f := range append(fields(&Server{}), fields(&Agent{})...) {
		if f.key == key {
			return "--" + f.flag + " (" + key + ")"
		}
	}
	panic("config: no field " + key) // a typo in this package; its tests exercise every label
}

// configFlag names the file; it is the one flag without a field.
const configFlag = "config"

// Switches of k3s for which there is no field.
const (
	// k3sS3 switches on its copies in a store. Here a bucket is enough, so this flag only checks that there is one.
	k3sS3 = "etcd-s3"
	// k3sCompress compresses its snapshots. Here all are compressed, so this flag cannot be false.
	k3sCompress = "etcd-snapshot-compress"
	// k3sNoSnapshots is SnapshotsNever as the schedule.
	k3sNoSnapshots = "etcd-disable-snapshots"
)

// k3sSnapshotFlags are those of k3s' switches that all commands about snapshots have.
func k3sSnapshotFlags() []cli.Flag {
	return []cli.Flag{&cli.BoolFlag{Name: k3sS3, Hidden: true},
		&cli.BoolFlag{Name: k3sCompress, Value: true, Usage: "k3s' flag, no effect: snapshots are always compressed"}}
}

// Flags returns the flags of `kubelith server`: --config, one for each field of Server, and switches of k3s.
func Flags() []cli.Flag {
	all := append(flags(Default(), func(field) bool { return true }), k3sSnapshotFlags()...)
	return append(all, &cli.BoolFlag{Name: k3sNoSnapshots, Usage: "k3s' name for --snapshot-schedule never"})
}

// AgentFlags returns the flags of `kubelith agent`: --config and one for each field of Agent.
func AgentFlags() []cli.Flag { return flags(DefaultAgent(), func(field) bool { return true }) }

// DirFlags returns the flags for directories, for the commands that work on what a server or an agent left behind (ctr,
// reset), and the flags of further keys of a server's file. LoadDirs reads them.
func DirFlags(more ...string) []cli.Flag {
	keys := append([]string{"dataDir", "runDir", "kubeletRootDir"}, more...)
	return flags(Default(), func(f field) bool { return slices.Contains(keys, f.name()) })
}

// SnapshotFlags are DirFlags for the commands about snapshots.
func SnapshotFlags() []cli.Flag {
	all := DirFlags(append(s3Keys(), "nodeName", "snapshotDir", "snapshotRetention", "snapshotPassphraseFile", "snapshotRecipients")...)
	return append(all, k3sSnapshotFlags()...)
}

func flags(def settings, want func(field) bool) []cli.Flag {
	out := []cli.Flag{&cli.StringFlag{Name: configFlag, Usage: "YAML file with the same settings", Value: DefaultFile}}
	for _, f := range fields(def) {
		if !want(f) || f.flag == "" {
			continue
		}
		if f.key == "disable" {
			f.usage += ": " + strings.Join(def.disableable(), ", ")
		}
		switch v := f.in(def).Interface().(type) {
		case string:
			set := &cli.StringFlag{Name: f.flag, Aliases: f.aliases(), Usage: f.usage, Value: v}
			if f.env != "" {
				set.EnvVars = []string{f.env}
			}
			out = append(out, set)
		case bool:
			out = append(out, &cli.BoolFlag{Name: f.flag, Aliases: f.aliases(), Usage: f.usage, Value: v})
		case int:
			out = append(out, &cli.IntFlag{Name: f.flag, Aliases: f.aliases(), Usage: f.usage, Value: v})
		case []string:
			out = append(out, &cli.GenericFlag{Name: f.flag, Usage: f.usage + "; repeat it or separate by commas",
				Value: &list{values: v, commas: true}})
		case Args:
			out = append(out, &cli.GenericFlag{Name: f.flag, Usage: f.usage + "; may be repeated", Value: &list{values: v}})
		}
	}
	return out
}

// fromFlags overwrites s with the given flags.
func fromFlags(c *cli.Context, s settings) {
	for _, f := range fields(s) {
		if f.flag == "" || !c.IsSet(f.flag) {
			continue
		}
		v := f.in(s)
		switch v.Interface().(type) {
		case string:
			v.SetString(c.String(f.flag))
		case bool:
			v.SetBool(c.Bool(f.flag))
		case int:
			v.SetInt(int64(c.Int(f.flag)))
		default:
			v.Set(reflect.ValueOf(c.Generic(f.flag).(*list).values).Convert(v.Type()))
		}
	}
}

// list is the value of a flag that may be repeated. cli.StringSlice is not used because splitting at commas is one
// setting for the whole program.
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
