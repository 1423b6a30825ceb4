package preflight

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"

	"kubelith.io/kubelith/base/atomicfile"
)

// Passed are trials of nft's rules that a start has made since the boot of this host, and that passed: what the kernel
// accepted once it accepts again. They are a third of what the checks of a start take. A trial that failed is always
// made again.
type Passed struct {
	file string

	mu     sync.Mutex
	boot   string
	trials []string // hashes of the rules, and of the program
	added  bool
}

// passedFile is the content of the file.
type passedFile struct {
	Boot   string   `json:"boot"`
	Trials []string `json:"trials"`
}

// ReadPassed reads them from a file, which may be missing.
func ReadPassed(file string) *Passed {
	p := &Passed{file: file}
	var content passedFile
	if text, err := os.ReadFile(file); err == nil && json.Unmarshal(text, &content) == nil {
		p.boot, p.trials = content.Boot, content.Trials
	}
	return p
}

// Write writes them, if there are new ones.
func (k *Passed) Write() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.added {
		return nil
	}
	text, err := json.Marshal(passedFile{k.boot, k.trials})
	if err != nil {
		return err
	}
	return atomicfile.WriteWith(k.file, text, atomicfile.Options{Passing: true})
}

// try makes a trial of these rules in namespaces of its own, unless it is known to pass.
func (k *Passed) try(p probe, nft, rules string, work func() error) error {
	trial := p.trial(nft, rules)
	if k.has(p.boot(), trial) {
		return nil
	}
	err := p.isolated(work)
	if err == nil {
		k.add(p.boot(), trial)
	}
	return err
}

func (k *Passed) has(boot, trial string) bool {
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return boot != "" && k.boot == boot && slices.Contains(k.trials, trial)
}

func (k *Passed) add(boot, trial string) {
	if k == nil || boot == "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.boot != boot {
		k.boot, k.trials = boot, nil
	}
	k.trials, k.added = append(k.trials, trial), true
}

// boot identifies the boot of this host; "" if it is not known.
func (p probe) boot() string {
	return p.files.Text("/proc/sys/kernel/random/boot_id")
}

// trial identifies rules that this program nft writes, with these capabilities.
func (p probe) trial(nft, rules string) string {
	program := fmt.Sprintf("%x\n", p.capabilities())
	if info, err := os.Stat(nft); err == nil {
		program += fmt.Sprintf("%s %d %d\n", nft, info.Size(), info.ModTime().UnixNano())
	}
	sum := sha256.Sum256([]byte(program + rules))
	return hex.EncodeToString(sum[:])
}
