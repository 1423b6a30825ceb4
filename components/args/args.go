// Package args applies "key=value" arguments of a user (--apiserver-arg and its
// siblings) to an upstream component's own flag set.
//
// Upstream's flags are used for parsing and validation only: the component is
// composed from the typed options behind them. A flag that our composition
// sets itself, or would ignore, is refused with the reason; so is an unknown
// one, with the nearest name that exists. Nothing is swallowed.
package args

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
)

// Refused maps the name of an upstream flag to the reason why it cannot be
// given, in words that complete "--NAME: ".
type Refused map[string]string

// Merge returns the union of several maps.
func Merge(all ...Refused) Refused {
	m := Refused{}
	for _, r := range all {
		for k, v := range r {
			m[k] = v
		}
	}
	return m
}

// Logging has the flags of upstream's logging, which one logger of ours replaces.
func Logging() Refused {
	r := Refused{}
	for _, f := range []string{"v", "vmodule", "logging-format", "log-flush-frequency", "log-text-info-buffer-size", "log-text-split-stream"} {
		r[f] = "there is one log for the whole process: use --log-level and --log-format"
	}
	r["version"] = "see kubelith version"
	r["help"] = "see upstream's documentation of the component"
	return r
}

// FeatureGates are one set for the whole process: see Gates.
func FeatureGates() Refused {
	why := "feature gates and emulated versions are set for the whole process before a component is built"
	return Refused{"feature-gates": why, "emulated-version": why, "emulation-forward-compatible": why, "min-compatibility-version": why}
}

// Serving has the flags of the HTTPS port that upstream's controller-manager
// and scheduler have each; here the apiserver serves metrics and health for all.
func Serving() Refused {
	r := Refused{}
	for _, f := range []string{"bind-address", "secure-port", "tls-cert-file", "tls-private-key-file", "cert-dir",
		"tls-cipher-suites", "tls-curve-preferences", "tls-min-version", "tls-sni-cert-key", "permit-port-sharing",
		"permit-address-sharing", "http2-max-streams-per-connection", "disable-http2-serving", "profiling",
		"contention-profiling", "authentication-kubeconfig", "authentication-skip-lookup",
		"authentication-token-webhook-cache-ttl", "authentication-tolerate-lookup-failure", "client-ca-file",
		"requestheader-allowed-names", "requestheader-client-ca-file", "requestheader-extra-headers-prefix",
		"requestheader-group-headers", "requestheader-uid-headers", "requestheader-username-headers",
		"authorization-kubeconfig", "authorization-always-allow-paths", "authorization-webhook-cache-authorized-ttl",
		"authorization-webhook-cache-unauthorized-ttl", "show-hidden-metrics-for-version", "disabled-metrics",
		"allow-metric-labels", "allow-metric-labels-manifest"} {
		r[f] = "metrics and health are served once, by the apiserver"
	}
	return r
}

// Election has the flags of leader election, which one server does without.
func Election() Refused {
	r := Refused{}
	for _, f := range []string{"leader-elect", "leader-elect-lease-duration", "leader-elect-renew-deadline",
		"leader-elect-retry-period", "leader-elect-resource-lock", "leader-elect-resource-name",
		"leader-elect-resource-namespace"} {
		r[f] = "there is one server, and no election"
	}
	return r
}

// Clients has the flags of the connection to the apiserver.
func Clients() Refused {
	r := Refused{}
	for _, f := range []string{"kubeconfig", "master", "kube-api-qps", "kube-api-burst", "kube-api-content-type"} {
		r[f] = "every component uses the in-process client"
	}
	return r
}

// Apply sets each "key=value" on the flag sets. option is the name under which
// the user gave them ("--apiserver-arg"), for messages. All errors are returned.
func Apply(option string, sets cliflag.NamedFlagSets, refused Refused, keyValues []string) error {
	all := pflag.NewFlagSet(option, pflag.ContinueOnError)
	all.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	for _, name := range sets.Order {
		all.AddFlagSet(sets.FlagSets[name])
	}
	return ApplyTo(option, all, refused, keyValues)
}

// ApplyTo is Apply for a single flag set.
func ApplyTo(option string, all *pflag.FlagSet, refused Refused, keyValues []string) error {
	// What pflag says of deprecated flags is about a command line that nobody typed.
	all.SetOutput(io.Discard)
	var errs []error
	for _, kv := range keyValues {
		key, value, found := strings.Cut(kv, "=")
		key = flagName(key)
		if !found {
			errs = append(errs, fmt.Errorf("%s %q: give it as key=value", option, kv))
			continue
		}
		f := all.Lookup(key)
		switch why, no := refused[key]; {
		case no:
			errs = append(errs, fmt.Errorf("%s %s: cannot be set: %s", option, key, why))
		case f == nil:
			errs = append(errs, fmt.Errorf("%s %s: unknown flag%s", option, key, suggestion(key, all)))
		default:
			if err := all.Set(f.Name, value); err != nil {
				errs = append(errs, fmt.Errorf("%s %s: %w", option, key, err))
			}
		}
	}
	return errors.Join(errs...)
}

// flagName is the name of the flag that a user means: upstream's commands take
// "--some_flag" for some-flag, and what is refused has to be so in any spelling.
func flagName(key string) string {
	return strings.ReplaceAll(strings.TrimLeft(strings.TrimSpace(key), "-"), "_", "-")
}

func suggestion(key string, fs *pflag.FlagSet) string {
	var names []string
	fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return nearest(key, names)
}

// nearest is ": did you mean ...?", or nothing when no name is near.
func nearest(key string, names []string) string {
	best, distance := "", len(key)/2+1
	for _, name := range names {
		if d := levenshtein.ComputeDistance(key, name); d < distance {
			best, distance = name, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(": did you mean %q?", best)
}

// KnownGates refuses a feature gate in the result of Gates that is not among those known, with the nearest name.
func KnownGates[V any, K ~string](global []string, known map[K]V) error {
	var names []string
	for name := range known {
		names = append(names, string(name))
	}
	sort.Strings(names)
	var errs []error
	for _, kv := range global {
		list, found := strings.CutPrefix(kv, "feature-gates=")
		if !found {
			continue
		}
		for _, gate := range strings.Split(list, ",") {
			name, _, _ := strings.Cut(gate, "=")
			// Upstream takes a component's prefix, "kube:".
			name = strings.TrimSpace(name[strings.LastIndex(name, ":")+1:])
			if !slices.Contains(names, name) {
				errs = append(errs, fmt.Errorf("unrecognized feature gate %s%s", name, nearest(name, names)))
			}
		}
	}
	return errors.Join(errs...)
}

// Gates takes the arguments that hold for the whole process (feature-gates,
// emulated-version) out of each list and returns the remaining lists and the
// merged arguments. The same gate with two values is an error.
func Gates(lists ...[]string) (rest [][]string, global []string, err error) {
	values := map[string]string{}
	var errs []error
	for _, list := range lists {
		var keep []string
		for _, kv := range list {
			key, value, _ := strings.Cut(kv, "=")
			switch flagName(key) {
			case "feature-gates":
				for _, gate := range strings.Split(value, ",") {
					name, on, _ := strings.Cut(gate, "=")
					if old, seen := values[name]; seen && old != on {
						errs = append(errs, fmt.Errorf("feature gate %s is set to %s and to %s: there is one set for the whole process", name, old, on))
					}
					values[name] = on
				}
			case "emulated-version", "emulation-forward-compatible", "min-compatibility-version":
				global = append(global, flagName(key)+"="+value)
			default:
				keep = append(keep, kv)
			}
		}
		rest = append(rest, keep)
	}
	if len(values) > 0 {
		gates := make([]string, 0, len(values))
		for name, on := range values {
			gates = append(gates, name+"="+on)
		}
		sort.Strings(gates)
		global = append(global, "feature-gates="+strings.Join(gates, ","))
	}
	return rest, global, errors.Join(errs...)
}
