package podlink

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubelith.io/kubelith/runtime/payload"
)

// portmap is a program that notes its calls, and whose ports are open while a file exists.
const portmap = `#!/bin/sh
echo $CNI_COMMAND $CNI_CONTAINERID >>"${0%/*}/calls"
case $CNI_COMMAND in
ADD) touch "${0%/*}/open"; echo '{"cniVersion": "1.0.0"}' ;;
DEL) rm -f "${0%/*}/open" ;;
CHECK) test -e "${0%/*}/open" || { echo '{"code": 999, "msg": "closed"}'; exit 1; } ;;
esac
`

// Ports that another program closes are opened again, for the pods that are connected.
func TestReopenPorts(t *testing.T) {
	w := newWorld(t, "10.42.0.0/24")
	dir := t.TempDir()
	w.s.opts.BinDir, w.s.opts.CacheDir = dir, dir
	if err := os.WriteFile(filepath.Join(dir, payload.Portmap), []byte(portmap), 0o755); err != nil {
		t.Fatal(err)
	}
	calls := func(want string) {
		t.Helper()
		if err := w.s.reopenPorts(t.Context()); err != nil {
			t.Error(err)
		}
		got, _ := os.ReadFile(filepath.Join(dir, "calls"))
		os.Remove(filepath.Join(dir, "calls"))
		if got := strings.Join(strings.Split(strings.TrimSpace(string(got)), "\n"), ", "); got != want {
			t.Errorf("calls %q, want %q", got, want)
		}
	}
	calls("")

	ports := map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
	list, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "n", "plugins": []any{w.config}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "results"), 0o700); err != nil {
		t.Fatal(err)
	}
	// keep is what libcni does after an ADD.
	keep := func(p *pod, netns string, capabilities map[string]any, result any) {
		t.Helper()
		content, err := json.Marshal(map[string]any{
			"kind": "cniCacheV1", "containerId": p.id, "config": list, "ifName": "eth0", "networkName": "n", "netns": netns,
			"cniArgs": [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", p.id}}, "capabilityArgs": capabilities, "result": result,
		})
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "results", "n-"+p.id+"-eth0"), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	plain, open, gone := newPod(t, "plain"), newPod(t, "open"), newPod(t, "gone")
	keep(plain, plain.netns, nil, w.add(plain))
	w.config["runtimeConfig"] = ports
	keep(open, open.netns, ports, w.add(open))
	keep(gone, filepath.Join(dir, "none"), ports, w.add(gone))
	calls("ADD open, ADD gone, CHECK open")
	os.Remove(filepath.Join(dir, "open"))
	calls("CHECK open, DEL open, ADD open")
	calls("CHECK open")
	w.done("DEL", open)
	calls("DEL open") // libcni has not noticed yet
	for _, p := range []*pod{plain, gone} {
		w.done("DEL", p)
	}
}
