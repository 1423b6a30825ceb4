package servers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// TestMachines lets clients write to servers on other machines, and checks what they saw, while
// scripts/vm-servers-test.sh does something to the machines: until the file KUBELITH_MACHINES_UNTIL exists.
// KUBELITH_MACHINES has a kubeconfig for each server, separated by colons.
func TestMachines(t *testing.T) {
	kubeconfigs, until := os.Getenv("KUBELITH_MACHINES"), os.Getenv("KUBELITH_MACHINES_UNTIL")
	if kubeconfigs == "" || until == "" {
		t.Skip("KUBELITH_MACHINES and KUBELITH_MACHINES_UNTIL are not set: see scripts/vm-servers-test.sh")
	}
	h := &history{patience: 20 * time.Second, pause: 300 * time.Millisecond} // machines under emulation are slow
	for _, path := range strings.Split(kubeconfigs, ":") {
		config, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			t.Fatal(err)
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		h.names, h.clients = append(h.names, filepath.Base(path)), append(h.clients, client)
	}
	h.forget(t)
	h.record(t)
	defer h.forget(t)
	for t.Context().Err() == nil {
		if _, err := os.Stat(until); err == nil {
			break
		}
		time.Sleep(time.Second)
	}
	h.check(t)
}
