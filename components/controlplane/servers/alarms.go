package servers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"kubelith.io/kubelith/components/controlplane/etcd"
)

// Kinds of alarms. With the first one all servers refuse writes, with the other one reads, too.
const (
	NoSpace = "NOSPACE"
	Corrupt = "CORRUPT"
)

// Alarm is one of etcd's: a server has no space, or other data than the others. All servers act on it until it is
// cleared, also when that server is gone.
type Alarm struct {
	// Kind is NoSpace or Corrupt.
	Kind string `json:"kind"`
	// Server is the name of the server, or the ID of a member that is gone.
	Server string `json:"server"`
	// Gone means that it is no longer in the cluster.
	Gone bool `json:"gone,omitempty"`

	id   uint64
	kind pb.AlarmType
	self bool
}

// String describes it to users.
func (a Alarm) String() string {
	if a.Gone {
		return fmt.Sprintf("%s of a server that is no longer in the cluster (%s)", a.Kind, a.Server)
	}
	return fmt.Sprintf("%s of server %s", a.Kind, a.Server)
}

// UnmarshalJSON also reads what earlier releases answer: the kind alone, of the server that was asked.
func (a *Alarm) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, &a.Kind) == nil {
		a.Server = "that was asked"
		return nil
	}
	type plain Alarm
	return json.Unmarshal(data, (*plain)(a))
}

// alarms returns those of all servers, by server.
func (s *Server) alarms(ctx context.Context, c *clientv3.Client) ([]Alarm, error) {
	list, err := c.AlarmList(ctx)
	if err != nil {
		return nil, err
	}
	members := s.opts.Etcd.Members()
	var all []Alarm
	for _, a := range list.Alarms {
		all = append(all, alarmOf(a.MemberID, a.Alarm, members))
	}
	slices.SortFunc(all, func(a, b Alarm) int { return strings.Compare(a.String(), b.String()) })
	return all, nil
}

func alarmOf(id uint64, kind pb.AlarmType, members []etcd.Member) Alarm {
	a := Alarm{Kind: kind.String(), Server: fmt.Sprintf("%x", id), Gone: true, id: id, kind: kind}
	for _, m := range members {
		if m.ID == id {
			a.Server, a.Gone, a.self = nameOf(m), false, m.Self
		}
	}
	return a
}

// refusesWrites reports whether etcd refuses writes, on all servers.
func (s Space) refusesWrites() bool {
	return slices.ContainsFunc(s.Alarms, func(a Alarm) bool { return a.Kind == NoSpace })
}

// corrupt returns the server whose data differs from that of the others, if etcd has found one.
func corrupt(alarms []Alarm) string {
	for _, a := range alarms {
		if a.Kind == Corrupt {
			return a.Server
		}
	}
	return ""
}

// outdated returns the alarms for which there is no longer a reason: that of this server once it has room, and those of
// servers that are gone or have not answered for a while, if etcd can write here. One that comes back without space
// raises its alarm again.
func (s *Server) outdated(now Space) []Alarm {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(now.Alarms), func(a Alarm) bool {
		since, missing := s.missing[a.id]
		switch {
		case a.Kind != NoSpace:
			return true
		case a.self:
			return now.tight()
		case a.Gone, missing && time.Since(since) >= s.absentFor:
			return now.Bytes >= now.Quota
		}
		return true // that server clears it
	})
}

// Disarm clears the alarms of all servers, as an administrator wishes. One that has no space raises its alarm again at
// the next write, and one whose data differs when etcd compares it again.
func (s *Server) Disarm(ctx context.Context) error {
	return s.change(ctx, func(ctx context.Context, c *clientv3.Client) error { return etcd.ClearAlarms(ctx, c) })
}

// disarm clears one alarm.
func (s *Server) disarm(ctx context.Context, a Alarm) error {
	return s.change(ctx, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: a.id, Alarm: a.kind})
		return err
	})
}
