package host

import (
	"fmt"
	"math/rand/v2"

	"github.com/prometheus/procfs"
)

// The users of plugins with AutoUID: a range that systemd's list has as unused on any distribution, different from
// those of pods and of services with DynamicUser.
// Source: https://systemd.io/UIDS-GIDS
const (
	FirstAutoUID = 61000
	LastAutoUID  = 61183
)

// users are those of the plugins with AutoUID, by name. One is never given to another plugin of the same run. The zero
// value is ready for use.
type users map[string]int64

// choose sets the user of a plugin with AutoUID: one that no other process has. Another server on this host takes its
// own from the same range.
func (u *users) choose(spec *Spec) error {
	if spec.Limits.UID == nil || *spec.Limits.UID != AutoUID {
		return nil
	}
	uid, ok := (*u)[spec.Name]
	if !ok {
		var err error
		if uid, err = u.free(); err != nil {
			return err
		}
		if *u == nil {
			*u = users{}
		}
		(*u)[spec.Name] = uid
	}
	spec.Limits.UID = &uid
	return nil
}

// free returns one of the range that is not taken. It is any of them, so that two servers that start at the same time
// do not both take the first one.
func (u *users) free() (int64, error) {
	taken, err := usersOfProcesses()
	if err != nil {
		return 0, fmt.Errorf("choose a user for limits.uid auto: %w", err)
	}
	for _, uid := range *u {
		taken[uid] = true
	}
	for _, n := range rand.Perm(LastAutoUID - FirstAutoUID + 1) {
		if uid := FirstAutoUID + int64(n); !taken[uid] {
			return uid, nil
		}
	}
	return 0, fmt.Errorf("no user is left for limits.uid auto: all from %d to %d are taken: restart the server", FirstAutoUID, LastAutoUID)
}

// usersOfProcesses returns the effective users of all processes that /proc shows: those that could reach each other.
func usersOfProcesses() (map[int64]bool, error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return nil, err
	}
	out := map[int64]bool{}
	for _, p := range processes {
		if status, err := p.NewStatus(); err == nil { // otherwise it has ended
			out[int64(status.UIDs[1])] = true
		}
	}
	return out, nil
}
