// Package passwordfile authenticates users by HTTP basic authentication with the passwords of a file, as kube-apiserver
// did with --basic-auth-file until 1.18. The file is read again when it changes; one that is wrong or that others may
// read changes nothing. docs/older-ways.md describes it.
package passwordfile

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// File is a password file.
type File struct {
	path    string
	key     [sha256.Size]byte // of digests
	unknown account           // takes the place of a user that does not exist
	users   atomic.Pointer[map[string]account]
	guesses guesses
	compare func(a, b []byte) int // subtle.ConstantTimeCompare, except in its test
	last    string                // what the last reading found
	poll    time.Duration
}

// account is a user of the file. A digest, because the length of a password would show in the time of its comparison.
type account struct {
	digest [sha256.Size]byte
	user   *user.DefaultInfo
}

var _ authenticator.Request = (*File)(nil)

// Open reads a password file. Follow keeps it up to date.
func Open(path string) (*File, error) {
	f := &File{path: path, compare: subtle.ConstantTimeCompare, poll: poll}
	rand.Read(f.key[:])
	rand.Read(f.unknown.digest[:]) // of no password
	users, found, err := f.read()
	if err != nil {
		return nil, err
	}
	f.users.Store(&users)
	f.last = found
	return f, nil
}

func (f *File) digest(password string) (sum [sha256.Size]byte) {
	h := hmac.New(sha256.New, f.key[:])
	h.Write([]byte(password))
	h.Sum(sum[:0])
	return sum
}

// AuthenticateRequest implements authenticator.Request. A user that does not exist takes as long as one that does. The
// errors, which are logged, name neither the user nor the password: people type one in place of the other.
func (f *File) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	name, password, ok := req.BasicAuth()
	if !ok {
		return nil, false, nil
	}
	digest := f.digest(password)
	found, exists := (*f.users.Load())[name]
	if !exists {
		found, name = f.unknown, ""
	}
	from := source(req.RemoteAddr)
	right, tried := f.guesses.try(guess{name, from}, func() bool {
		return f.compare(digest[:], found.digest[:]) == 1
	})
	switch {
	case !tried:
		return nil, false, fmt.Errorf("too many wrong passwords for a user from %s: the next one is checked in a second", from)
	case !right:
		return nil, false, fmt.Errorf("wrong user name or password from %s", from)
	}
	return &authenticator.Response{User: found.user}, true, nil
}

// source is the address, or with IPv6 the network, that one client has.
func source(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	address = address.Unmap().WithZone("")
	if network, err := address.Prefix(64); err == nil && address.Is6() {
		return network.String()
	}
	return address.String()
}
