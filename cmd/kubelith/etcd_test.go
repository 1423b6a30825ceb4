package kubelith

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/components/controlplane/servers"
)

// TestPrintServers: the alarms of all servers are shown, by name, and how fast the disk is.
func TestPrintServers(t *testing.T) {
	v := &servers.View{
		Asked:   "a",
		Servers: []servers.Status{{Name: "a", Role: servers.RoleLeader}, {Name: "b", Role: servers.RoleFollower}, {Name: "c", Role: servers.RoleFollower}},
		Space: &servers.Space{Bytes: 3 << 20, InUse: 2 << 20, Quota: 4 << 20, SlowSync: 0.008, Alarms: []servers.Alarm{
			{Kind: servers.Corrupt, Server: "b"}, {Kind: servers.NoSpace, Server: "8e9e05c52164694d", Gone: true}, {Kind: servers.NoSpace, Server: "c"},
		}},
	}
	var out bytes.Buffer
	if err := printServers(&out, v, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"has 3.0 MiB, of which 2.0 MiB are in use; the limit is 4 MiB.\n", "99 of 100 syncs to its disk (p99 of fsync) took 8ms or less.\n",
		"Alarm: CORRUPT of server b\n", "Alarm: NOSPACE of server c\n", "Alarm: NOSPACE of a server that is no longer in the cluster (8e9e05c52164694d)\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	out.Reset()
	v.Space.SlowSync, v.Space.Alarms = 0, nil
	if err := printServers(&out, v, time.Now()); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "Alarm") || strings.Contains(out.String(), "syncs") {
		t.Errorf("it shows what is not there:\n%s", out.String())
	}
}

// TestPrintDisarmed: each alarm is named, with what remains to be done.
func TestPrintDisarmed(t *testing.T) {
	for name, tc := range map[string]struct {
		space *servers.Space
		want  string
	}{
		"no answer": {nil, "cleared the alarms, if there were any\n"},
		"none":      {&servers.Space{}, "there was no alarm\n"},
		"full":      {&servers.Space{Alarms: []servers.Alarm{{Kind: servers.NoSpace, Server: "b"}}}, "NOSPACE of server b; if its database is still full, delete objects"},
		"gone":      {&servers.Space{Alarms: []servers.Alarm{{Kind: servers.NoSpace, Server: "1f", Gone: true}}}, "(1f); nothing remains to be done"},
		"corrupt":   {&servers.Space{Alarms: []servers.Alarm{{Kind: servers.Corrupt, Server: "b"}}}, "CORRUPT of server b; its data still differs"},
	} {
		var out bytes.Buffer
		if err := printDisarmed(&out, &servers.View{Space: tc.space}); err != nil || !strings.Contains(out.String(), tc.want) {
			t.Errorf("%s: %q, %v, want %q", name, out.String(), err, tc.want)
		}
	}
}
