// Package profile has the hardening profiles of a cluster: sets of arguments for upstream's components, and the files
// that these arguments name. An operator selects one with a single setting (--profile).
//
// It starts nothing. A profile only sets defaults: the operator's argument for the same flag takes precedence.
package profile

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// CIS is the profile that follows the CIS Kubernetes Benchmark 1.12. docs/hardening.md lists what it sets.
const CIS = "cis"

var (
	//go:embed audit-policy.yaml
	auditPolicy []byte
	//go:embed admission.yaml
	admission []byte
)

// Arguments are upstream's arguments, each "key=value" as an operator gives them.
type Arguments struct{ APIServer, ControllerManager, Kubelet []string }

// strongCiphers are the suites for TLS 1.2 that the benchmark allows (checks 1.2.29 and 4.2.12). TLS 1.3 has strong
// ones only.
const strongCiphers = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384," +
	"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256," +
	"TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"

// Of returns the arguments of the profile; none for the name "", which means no profile. dir holds the files of Write.
func Of(name, dir string) Arguments {
	if name != CIS {
		return Arguments{}
	}
	return Arguments{
		APIServer: []string{
			"audit-policy-file=" + filepath.Join(dir, auditPolicyFile),
			"audit-log-path=" + filepath.Join(dir, "audit", "audit.log"),
			"audit-log-maxage=30",     // days
			"audit-log-maxbackup=10",  // files
			"audit-log-maxsize=100",   // MiB
			"audit-log-compress=true", // rotated files
			"admission-control-config-file=" + filepath.Join(dir, admissionFile),
			"enable-admission-plugins=DenyServiceExternalIPs,EventRateLimit",
			"service-account-extend-token-expiration=false",
			"tls-min-version=VersionTLS12",
			"tls-cipher-suites=" + strongCiphers,
		},
		ControllerManager: []string{"terminated-pod-gc-threshold=1000"},
		Kubelet: []string{
			"pod-max-pids=4096",
			"tls-min-version=VersionTLS12",
			"tls-cipher-suites=" + strongCiphers,
		},
	}
}

// The files of the profile in its directory.
const (
	auditPolicyFile = "audit-policy.yaml"
	admissionFile   = "admission.yaml"
)

// Write creates dir and the files that the profile's arguments name, and the directory of the audit log. It replaces
// the files of an older release, and does nothing for the name "".
func Write(name, dir string) error {
	if name != CIS {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(dir, "audit"), 0o700); err != nil {
		return fmt.Errorf("create the directory of the profile: %w", err)
	}
	for file, content := range map[string][]byte{auditPolicyFile: auditPolicy, admissionFile: admission} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			return fmt.Errorf("write a file of the profile: %w", err)
		}
	}
	return nil
}

// With returns the arguments of a profile followed by those given, without the profile's arguments whose flag is also
// given. Admission plugins add up: an operator who enables one more keeps the profile's.
func With(defaults, given []string) []string {
	var out []string
	for _, d := range defaults {
		flag := flagOf(d)
		if flag == "enable-admission-plugins" || !slices.ContainsFunc(given, func(g string) bool { return flagOf(g) == flag }) {
			out = append(out, d)
		}
	}
	return append(out, given...)
}

// flagOf returns the flag of "key=value" in upstream's spelling.
func flagOf(argument string) string {
	key, _, _ := strings.Cut(argument, "=")
	return strings.ReplaceAll(strings.TrimLeft(strings.TrimSpace(key), "-"), "_", "-")
}
