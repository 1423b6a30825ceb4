package servers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/components/controlplane/etcd"
)

// stale returns the members that this machine was before: one of its name that has lost its data, or an earlier try.
// What s.missing has must be of this moment (look).
func (s *Server) stale(ctx context.Context, r request) ([]uint64, error) {
	var ids []uint64
	for _, m := range s.opts.Etcd.Members() {
		switch {
		case m.Name == r.Name:
			if err := s.absent(ctx, m); err != nil {
				return nil, err
			}
			ids = append(ids, m.ID)
		case r.Witness && m.Witness:
			return nil, refuse("the cluster has the witness %s, and one is enough: add a server, or remove that witness with kubelith etcd remove %[1]s", m.Name)
		case m.Learner && m.URL == r.PeerURL:
			ids = append(ids, m.ID)
		case m.URL == r.PeerURL:
			return nil, refuse("%s %s of the cluster has the address %s: "+
				"use another --advertise-address, or remove that %[1]s with kubelith etcd remove %[2]s", kind(m), m.Name, r.PeerURL)
		case m.Learner:
			return nil, wait(fmt.Sprintf("server %s (%s) is joining", nameOf(m), m.URL))
		}
	}
	return ids, nil
}

// absent returns why a machine cannot take the place of the member of its name: that one runs, or may run. It must have
// been missing for a while, and its API must not be announced: a server that does not answer here but writes to etcd is
// connected to the leader.
func (s *Server) absent(ctx context.Context, m etcd.Member) error {
	s.mu.Lock()
	since, missing := s.missing[m.ID]
	s.mu.Unlock()
	if m.Self || !missing {
		return refuse("a %s %s is in the cluster, and runs: use another --node-name", kind(m), m.Name)
	}
	if away := time.Since(since); away < s.absentFor {
		return wait(fmt.Sprintf("%s %s of the cluster has not answered for %s: after %s this machine takes its place",
			kind(m), m.Name, away.Round(time.Second), s.absentFor))
	}
	announced, err := s.announced(ctx, m)
	if err != nil {
		return err
	}
	if announced {
		return wait(fmt.Sprintf("server %s of the cluster does not answer server %s, but has announced its API a moment ago: "+
			"repair the network between the two, or use another --node-name", m.Name, s.opts.NodeName))
	}
	return nil
}

// announced reports whether the API of a server is an endpoint of the Service kubernetes. Each server renews its own in
// etcd every ten seconds, for 15, and for longer on a slow disk; a witness has none.
func (s *Server) announced(ctx context.Context, m etcd.Member) (bool, error) {
	u, err := url.Parse(m.URL)
	if err != nil {
		return false, err
	}
	slice, err := s.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if apierrors.IsNotFound(err) { // nothing announces them
		return false, nil
	}
	if err != nil {
		return false, err
	}
	ip := net.ParseIP(u.Hostname())
	for _, e := range slice.Endpoints {
		if slices.ContainsFunc(e.Addresses, func(a string) bool { return ip.Equal(net.ParseIP(a)) }) {
			return true, nil
		}
	}
	return false, nil
}

// disconnected returns why etcd would not add a member when those in without are left out: it must be connected to a
// majority of the other voters and one more. Source: mayAddMember in etcd/server/etcdserver/server.go.
func (s *Server) disconnected(members []etcd.Member, without []uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	votes, there := 0, 0
	var gone *etcd.Member
	for i, m := range members {
		if m.Learner || slices.Contains(without, m.ID) {
			continue
		}
		votes++
		if _, missing := s.missing[m.ID]; missing {
			gone = &members[i]
		} else {
			there++
		}
	}
	if gone == nil || there >= (votes+1)/2+1 {
		return nil
	}
	return wait(fmt.Sprintf("%s %s of the cluster has not answered for %s, and no other can join meanwhile: "+
		"start it, or remove it with kubelith etcd remove %[2]s",
		kind(*gone), gone.Name, time.Since(s.missing[gone.ID]).Round(time.Second)))
}

// learnTimeout is how long the other servers may take to learn of a newcomer, and learnEvery how often they are asked.
const learnTimeout, learnEvery = 5 * time.Second, 100 * time.Millisecond

// learned waits until the servers that answer know a newcomer, and so that the member whose place it takes was removed.
//
// The newcomer has a new id: etcd derives it from the time, too (computeMemberID, etcdserver/api/membership/member.go),
// and refuses one that was removed. The leader does not take a new id to have stored anything (initProgress,
// raft/confchange/confchange.go), and a member drops what is sent to another id (Process, etcdserver/server.go): so
// etcd's panic "tocommit is out of range" cannot happen. But a member without data finds its id by its address, in the
// list of the first server that answers (bootstrapExistingClusterNoWAL, etcdserver/bootstrap.go). If that one had not
// removed the former member yet, the newcomer would begin as that one.
func (s *Server) learned(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, learnTimeout)
	defer cancel()
	for _, m := range s.opts.Etcd.Members() {
		s.mu.Lock()
		_, missing := s.missing[m.ID]
		s.mu.Unlock()
		if m.Self || missing || m.Learner {
			continue
		}
		for !s.knows(ctx, m, id) {
			if !reconcile.Sleep(ctx, learnEvery) {
				return wait(fmt.Sprintf("%s %s has not learned yet that this machine joins: wait until it has caught up", kind(m), m.Name))
			}
		}
	}
	return nil
}

// knows reports whether a member has another one in its list.
func (s *Server) knows(ctx context.Context, m etcd.Member, id uint64) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.URL+"/members", nil)
	if err != nil {
		return false
	}
	response, err := s.probe.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	var list []struct {
		ID uint64 `json:"id"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(&list); err != nil {
		return false
	}
	for _, other := range list {
		if other.ID == id {
			return true
		}
	}
	return false
}
