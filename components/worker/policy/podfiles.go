package policy

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"kubelith.io/kubelith/base/atomicfile"
)

// Pod is a pod of this node and its sandbox.
type Pod struct {
	Sandbox   string       `json:"sandbox"`
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	UID       types.UID    `json:"uid"`
	Port      string       `json:"port"` // the interface of the host that is the pod's; empty for pods of older versions
	IPs       []netip.Addr `json:"ips"`
}

// podFiles are the pods of this node that are connected, as files: they outlive the process, as the pods do, and are
// correct before the API answers.
type podFiles struct {
	dir string

	read      bool
	bySandbox map[string]Pod
	byUID     map[types.UID]Pod // the last sandbox of each
}

// load reads the files at the first call.
func (f *podFiles) load() error {
	if f.read {
		return nil
	}
	f.bySandbox, f.byUID = map[string]Pod{}, map[types.UID]Pod{}
	entries, err := os.ReadDir(f.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(f.dir, e.Name()))
		if err != nil {
			return err
		}
		var p Pod
		if json.Unmarshal(content, &p) != nil || p.Sandbox != e.Name() { // written half when the machine stopped: so did the pod
			continue
		}
		f.bySandbox[p.Sandbox] = p
		f.byUID[p.UID] = p
	}
	f.read = true
	return nil
}

func (f *podFiles) add(p Pod) error {
	if err := f.load(); err != nil {
		return err
	}
	content, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return err
	}
	if err := atomicfile.WriteWith(filepath.Join(f.dir, p.Sandbox), content, atomicfile.Options{Passing: true}); err != nil {
		return err
	}
	f.bySandbox[p.Sandbox] = p
	f.byUID[p.UID] = p
	return nil
}

// remove returns the pod of a sandbox, and whether it was the last one of its pod.
func (f *podFiles) remove(sandbox string) (p Pod, current bool, err error) {
	if err := f.load(); err != nil {
		return Pod{}, false, err
	}
	p, known := f.bySandbox[sandbox]
	if !known {
		return Pod{}, false, nil
	}
	if err := os.Remove(filepath.Join(f.dir, sandbox)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Pod{}, false, err
	}
	delete(f.bySandbox, sandbox)
	if current = f.byUID[p.UID].Sandbox == sandbox; current {
		delete(f.byUID, p.UID)
	}
	return p, current, nil
}
