package store

import (
	"fmt"
	"syscall"
)

// ownerOf returns the owner of a file, from its stat data, and a tag that changes with its content.
func ownerOf(sys any) (uid, gid uint32, tag string) {
	st, ok := sys.(*syscall.Stat_t)
	if !ok {
		return 0, 0, ""
	}
	return st.Uid, st.Gid, fmt.Sprintf("%x-%x-%x", st.Ino, st.Size, st.Mtim.Nano())
}
