// Command profiles prints the seccomp profiles that most containers have, as JSON of the OCI runtime specification:
// containerd's default for its own architecture, with the capabilities that containers have by default and with none,
// which are the ones that make a difference. payload.mk compiles them into runc.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func main() {
	out := json.NewEncoder(os.Stdout)
	for _, capabilities := range [][]string{{"CAP_SYS_CHROOT"}, {}} {
		spec := specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: capabilities}}}
		if err := out.Encode(seccomp.DefaultProfile(&spec)); err != nil {
			fmt.Fprintln(os.Stderr, "profiles:", err)
			os.Exit(1)
		}
	}
}
