package encryption

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/rotation"
)

// Phase is what the servers are doing; each also requires what the one before did.
type Phase string

// The phases, in their order. Without a rotation it is empty or phaseDone.
const (
	phaseDistribute Phase = "distribute"
	phaseWrite      Phase = "write"
	phaseRewrite    Phase = "rewrite"
	phaseDrop       Phase = "drop"
	phaseDone       Phase = "done"
)

// described describes it for an administrator.
func (p Phase) described() string {
	switch p {
	case phaseDistribute:
		return "every server gets it"
	case phaseWrite:
		return "every server begins to encrypt with it"
	case phaseRewrite:
		return "the Secrets are re-encrypted"
	case phaseDrop:
		return "every server drops the other keys"
	}
	return "done"
}

// State is where a rotation is.
type State struct {
	Key      string    `json:"key,omitempty"` // its name
	Phase    Phase     `json:"phase,omitempty"`
	Started  time.Time `json:"started,omitzero"`
	Finished time.Time `json:"finished,omitzero"`
}

// Active implements rotation.State.
func (st State) Active() bool { return st.Phase != "" && st.Phase != phaseDone }

// String implements rotation.State.
func (st State) String() string {
	if st.Active() {
		return fmt.Sprintf("rotation of the key for Secrets to %s: %s", st.Key, st.Phase.described())
	}
	return fmt.Sprintf("the key for Secrets is %s: all Secrets are encrypted with it, and no server has another one", st.Key)
}

// arrange returns the keys that a server has in this phase, of which the first encrypts. The new key is among them.
func (st State) arrange(keys []pki.EncryptionKey) []pki.EncryptionKey {
	i := slices.IndexFunc(keys, func(k pki.EncryptionKey) bool { return k.Name == st.Key })
	if i < 0 {
		return keys
	}
	key := keys[i]
	switch st.Phase {
	case phaseWrite, phaseRewrite:
		return append([]pki.EncryptionKey{key}, slices.Delete(slices.Clone(keys), i, i+1)...)
	case phaseDrop:
		return []pki.EncryptionKey{key}
	}
	return keys
}

// Report is what a server's API server has loaded.
type Report struct {
	Writes  string   `json:"writes,omitempty"`  // the key that encrypts
	Reads   []string `json:"reads,omitempty"`   // all keys
	Problem string   `json:"problem,omitempty"` // why it does not do what the phase requires
}

// lacks returns what a server has not done yet in the phase, else nothing.
func (st State) lacks(r Report) string {
	switch {
	case r.Problem != "":
		return r.Problem
	case r.Writes == "":
		return "it has not reported"
	case st.Phase == phaseDistribute && !slices.Contains(r.Reads, st.Key):
		return "it has not loaded the new key"
	case (st.Phase == phaseWrite || st.Phase == phaseRewrite) && r.Writes != st.Key:
		return "it does not encrypt with the new key yet"
	case st.Phase == phaseDrop && !slices.Equal(r.Reads, []string{st.Key}):
		return "it has not dropped the other keys"
	}
	return ""
}

// waiting names the servers that hold up the phase.
func (st State) waiting(servers []string, reports map[string]Report) string {
	return strings.Join(rotation.Waiting(servers, reports, st.lacks), "; ")
}

// next returns the state that follows, or what it waits for. remaining is how many Secrets other keys encrypt.
func (st State) next(servers []string, reports map[string]Report, remaining int, now time.Time) (next State, waiting string) {
	if waiting = st.waiting(servers, reports); waiting != "" {
		return st, waiting
	}
	next = st
	switch st.Phase {
	case phaseDistribute:
		next.Phase = phaseWrite
	case phaseWrite:
		next.Phase = phaseRewrite
	case phaseRewrite:
		if remaining > 0 {
			return st, fmt.Sprintf("%d Secrets", remaining)
		}
		next.Phase = phaseDrop
	case phaseDrop:
		next.Phase, next.Finished = phaseDone, now.UTC().Truncate(time.Second)
	}
	return next, ""
}
