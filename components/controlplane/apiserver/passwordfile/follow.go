package passwordfile

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apiserver/pkg/authentication/user"

	"kubelith.io/kubelith/base/watchdir"
)

const (
	settle = 200 * time.Millisecond
	// poll finds what the watched directories do not show: a link above them that now points elsewhere.
	poll = 10 * time.Second
)

// Follow reads the file again when it changes, until ctx ends.
func (f *File) Follow(ctx context.Context, log logrus.FieldLogger) {
	log.Warnf("%d users of %s log in with a password, which can be guessed and does not expire: prefer client certificates or tokens",
		len(*f.users.Load()), f.path)
	f.warnOfMasters(log)
	watched := watchdir.New(watchdir.Options{Settle: settle, Poll: f.poll, Log: log})
	defer watched.Close()
	tick := time.NewTicker(f.poll)
	defer tick.Stop()
	for {
		// The directory of the file, and if it is a link, that of what it points to: Kubernetes' volumes replace a link
		// in between, which is in the first.
		watched.Add(filepath.Dir(f.path))
		if target, err := filepath.EvalSymlinks(f.path); err == nil {
			watched.Add(filepath.Dir(target))
		}
		f.reload(log)
		select {
		case <-ctx.Done():
			return
		case <-watched.Changed():
		case <-tick.C:
		}
	}
}

// reload replaces the users by those of the file, unless that is wrong.
func (f *File) reload(log logrus.FieldLogger) {
	users, found, err := f.read()
	if err != nil {
		found = err.Error()
	}
	if found == f.last {
		return
	}
	f.last = found
	if err != nil {
		log.Warnf("%v; its previous passwords still apply", err)
		return
	}
	f.users.Store(&users)
	log.Infof("read %s again: %d users", f.path, len(users))
	f.warnOfMasters(log)
}

// read returns the users of the file, and a value that differs with its content.
func (f *File) read() (users map[string]account, found string, err error) {
	text, err := load(f.path)
	if err != nil {
		return nil, "", err
	}
	lines, err := parse(text)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", f.path, err)
	}
	users = make(map[string]account, len(lines))
	for _, l := range lines {
		users[l.user.Name] = account{f.digest(l.password), l.user}
	}
	return users, fmt.Sprintf("%x", sha256.Sum256(text)), nil
}

func (f *File) warnOfMasters(log logrus.FieldLogger) {
	users := *f.users.Load()
	var masters []string
	for _, name := range slices.Sorted(maps.Keys(users)) {
		if slices.Contains(users[name].user.Groups, user.SystemPrivilegedGroup) {
			masters = append(masters, name)
		}
	}
	if len(masters) > 0 {
		log.Warnf("%s: these users are in system:masters, whose rights RBAC cannot take away: %s; prefer kubelith:admins", f.path, strings.Join(masters, ", "))
	}
}
