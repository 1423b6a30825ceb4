// Package args applies a user's "key=value" arguments (--apiserver-arg and its siblings) to an upstream component's own
// flag set.
//
// Upstream's flags only parse and validate: the component is composed from the typed options behind them. A flag that
// our composition sets itself, or would ignore, is refused with the reason. So is an unknown flag, with the nearest
// name that exists. No argument is silently ignored.
package args

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"kubelith.io/kubelith/base/suggest"
)

// Refused maps the name of an upstream flag to the reason why it is refused, in words that complete "--NAME: ".
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

// Logging has upstream's logging flags; our own logger replaces upstream's logging.
func Logging() Refused {
	r := Refused{}
	for _, f := range []string{"v", "vmodule", "logging-format", "log-flush-frequency", "log-text-info-buffer-size", "log-text-split-stream"} {
		r[f] = "there is one log for the whole process: use --log-level and --log-format"
	}
	r["version"] = "see kubelith version"
	r["help"] = "see upstream's documentation of the component"
	return r
}

// FeatureGates has the feature gate flags: the whole process shares one set, see Gates.
func FeatureGates() Refused {
	why := "feature gates and emulated versions are set for the whole process before a component is built"
	return Refused{"feature-gates": why, "emulated-version": why, "emulation-forward-compatible": why, "min-compatibility-version": why}
}

// Serving has the flags of the HTTPS port that upstream's controller-manager and scheduler each open; here the
// apiserver serves metrics and health for all.
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

// Election has the flags of leader election, which one server does not need.
func Election() Refused {
	r := Refused{}
	for _, f := range []string{"leader-elect", "leader-elect-lease-duration", "leader-elect-renew-deadline",
		"leader-elect-retry-period", "leader-elect-resource-lock", "leader-elect-resource-name",
		"leader-elect-resource-namespace"} {
		r[f] = "Kubelith elects its leading server itself"
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

// Apply sets each "key=value" on the flag sets. option is the name under which the user gave them ("--apiserver-arg"),
// for messages. All errors are returned.
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
	// pflag warns about deprecated flags as if they came from a command line; here they do not.
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

// flagName returns the name of the flag that a user means: upstream's commands accept "--some_flag" for some-flag, and
// a refused flag must be refused in any spelling.
func flagName(key string) string {
	return strings.ReplaceAll(strings.TrimLeft(strings.TrimSpace(key), "-"), "_", "-")
}

func suggestion(key string, fs *pflag.FlagSet) string {
	var names []string
	fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return suggest.Nearest(key, names)
}

// KnownGates refuses a feature gate in the result of Gates that is not in known, and names the nearest one.
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
			// Upstream accepts a component prefix, "kube:".
			name = strings.TrimSpace(name[strings.LastIndex(name, ":")+1:])
			if !slices.Contains(names, name) {
				errs = append(errs, fmt.Errorf("unrecognized feature gate %s%s", name, suggest.Nearest(name, names)))
			}
		}
	}
	return errors.Join(errs...)
}

// Gates takes the arguments that apply to the whole process (feature-gates, emulated-version) out of each list. It
// returns the remaining lists and the merged arguments. The same gate with two values is an error.
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
