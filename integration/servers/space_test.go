package servers

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// smallQuota is 24 MiB for etcd's database.
const smallQuota = "--etcd-arg=quota-backend-bytes=25165824"

// withQuota are the settings of a server whose database may have that many MiB.
func withQuota(mebibytes int) string {
	return fmt.Sprintf("apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\netcdArgs: [quota-backend-bytes=%d]\n", mebibytes<<20)
}

// createBig creates an object that takes 700 KiB of etcd's database.
func createBig(t *testing.T, s *harness.Server, name string) error {
	_, err := s.Client(t).CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"big": "yes"}}, Data: map[string]string{"x": strings.Repeat("x", 700<<10)},
	}, metav1.CreateOptions{})
	return err
}

// isFull reports whether etcd refused a write because its database is full.
func isFull(err error) bool {
	return err != nil && strings.Contains(err.Error(), "database space exceeded")
}

func deleteBig(t *testing.T, s *harness.Server) {
	t.Helper()
	harness.Eventually(t, 2*time.Minute, "objects to be deleted", func() error { // the server may be defragmenting
		return s.Client(t).CoreV1().ConfigMaps(metav1.NamespaceDefault).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "big=yes"})
	})
}

// fill creates objects on s until etcd refuses writes for good: full logs that only deletes help.
func fill(t *testing.T, s, full *harness.Server) {
	t.Helper()
	created := 0
	harness.Eventually(t, 5*time.Minute, full.NodeName()+" to report that its database is full", func() error {
		for range 60 { // removing old revisions may have made room
			created++
			if err := createBig(t, s, fmt.Sprintf("big-%d", created)); err != nil {
				break
			}
		}
		if !strings.Contains(full.Logs(), "delete objects") {
			return errors.New("its log does not say so")
		}
		return nil
	})
}

// TestFull: that etcd's database gets full is seen on the Node of its server, before and after. When it is, writes are
// refused, deletes are not, and writes go on by themselves once there is room.
func TestFull(t *testing.T) {
	t.Parallel()
	s := start(t, harness.Options{ConfigYAML: withQuota(64)}).servers[0]
	metrics, err := s.Client(t).CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(metrics), "\netcd_disk_wal_fsync_duration_seconds_count "); n != 1 {
		t.Errorf("/metrics has etcd's time of syncs %d times", n)
	}
	if r := s.RunBinary(t, "etcd", "status"); !strings.Contains(r.Stdout, "99 of 100 syncs to its disk (p99 of fsync) took ") {
		t.Errorf("etcd status:\n%s%s", r.Stdout, r.Stderr)
	}
	is := func(want corev1.ConditionStatus) error {
		node, err := s.Client(t).CoreV1().Nodes().Get(t.Context(), s.NodeName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == "EtcdSpacePressure" && c.Status == want {
				return nil
			}
		}
		return fmt.Errorf("the Node has %v", node.Status.Conditions)
	}
	pressure := func(want corev1.ConditionStatus) {
		t.Helper()
		harness.Eventually(t, 3*time.Minute, "the condition EtcdSpacePressure to be "+string(want), func() error { return is(want) })
	}
	event := func(reason string) {
		t.Helper()
		harness.Eventually(t, time.Minute, "the Event "+reason, func() error {
			all, err := s.Client(t).CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + s.NodeName() + ",reason=" + reason})
			if err == nil && len(all.Items) == 0 {
				err = errors.New("there is none")
			}
			return err
		})
	}
	pressure(corev1.ConditionFalse)
	early := 0
	harness.Eventually(t, 3*time.Minute, "the condition EtcdSpacePressure of a database of 84 % of its quota", func() error {
		text, err := s.Client(t).CoreV1().RESTClient().Get().AbsPath("/kubelith/v1/servers").DoRaw(t.Context())
		if err != nil {
			return err
		}
		var view struct{ Space struct{ Bytes, Quota int64 } }
		if err := json.Unmarshal(text, &view); err != nil {
			return harness.Permanent(err)
		}
		if view.Space.Bytes*100 > view.Space.Quota*84 { // until it is defragmented, which it is once
			return is(corev1.ConditionTrue)
		}
		early++
		if err := createBig(t, s, fmt.Sprintf("early-%d", early)); err != nil {
			return err
		}
		return fmt.Errorf("it has %d of %d bytes", view.Space.Bytes, view.Space.Quota)
	})
	event("EtcdNearlyFull")
	fill(t, s, s)
	if r := s.RunBinary(t, "etcd", "status"); !strings.Contains(r.Stdout, "Alarm: NOSPACE") {
		t.Errorf("etcd status:\n%s%s", r.Stdout, r.Stderr)
	}
	if err := createBig(t, s, "too-much"); !isFull(err) {
		t.Errorf("a full database accepted a write, though objects still fill it: %v", err)
	}
	// The two ways out: a larger quota, and, without it again, deletes.
	restart := func(mebibytes int) {
		t.Helper()
		if err := os.WriteFile(s.Path("/etc/kubelith/config.yaml"), []byte(withQuota(mebibytes)), 0o600); err != nil {
			t.Fatal(err)
		}
		s.Restart(t)
	}
	restart(128)
	harness.Eventually(t, time.Minute, "writes to go on with a larger quota", func() error { return createBig(t, s, "larger") })
	pressure(corev1.ConditionFalse)
	if r := s.RunBinary(t, "etcd", "alarm"); r.Code != 0 || !strings.Contains(r.Stdout, "there is no alarm") {
		t.Errorf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	restart(64)
	harness.Eventually(t, time.Minute, "writes to be refused with the smaller quota", func() error {
		if err := createBig(t, s, fmt.Sprintf("smaller-%d", time.Now().UnixNano())); !isFull(err) {
			return fmt.Errorf("the answer is: %v", err)
		}
		return nil
	})
	deleteBig(t, s)
	harness.Eventually(t, time.Minute, "writes to go on", func() error { return write(t.Context(), t, s, "room") })
	event("EtcdSpace")
	pressure(corev1.ConditionFalse) // before the Event, it was that of the larger quota
	r := s.RunBinary(t, "etcd", "status")
	if strings.Contains(r.Stdout, "Alarm") {
		t.Error("the alarm stands")
	}
	t.Logf("\n%s", r.Stdout)
	for _, command := range [][]string{{"defrag"}, {"disarm"}, {"alarm", "disarm"}} {
		if r := s.RunBinary(t, append([]string{"etcd"}, command...)...); r.Code != 0 {
			t.Errorf("etcd %v: %s", command, r.Stderr)
		}
	}
	if r := s.RunBinary(t, "etcd", "alarm"); r.Code != 0 || !strings.Contains(r.Stdout, "there is no alarm") {
		t.Errorf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// TestAlarmOfLostServer: the alarm of a server that is killed, and of one that is gone, does not stop the others; the
// server comes back without it once there is room.
func TestAlarmOfLostServer(t *testing.T) {
	t.Parallel()
	c := startTwo(t)
	first := c.servers[0]
	small := c.add(t, smallQuota)
	c.leader(t)
	fill(t, first, small)
	alarm := "Alarm: NOSPACE of server " + small.NodeName()
	for _, command := range []string{"status", "alarm"} {
		if r := first.RunBinary(t, "etcd", command); r.Code != 0 || !strings.Contains(r.Stdout, alarm) {
			t.Errorf("etcd %s: status %d\n%s%s", command, r.Code, r.Stdout, r.Stderr)
		}
	}
	if err := write(t.Context(), t, first, "too-much"); err == nil {
		t.Error("a write was acknowledged though a server has no space")
	}
	small.Kill9(t)
	harness.Eventually(t, 3*time.Minute, "the others to write without it", func() error { return write(t.Context(), t, first, "without") })
	deleteBig(t, first)
	small.Launch(t)
	small.WaitAPI(t)
	harness.Eventually(t, 5*time.Minute, "all to write, and no alarm", func() error {
		for _, s := range c.servers {
			if err := write(t.Context(), t, s, fmt.Sprintf("with-%s-%d", s.NodeName(), time.Now().UnixNano())); err != nil {
				return err
			}
		}
		if r := first.RunBinary(t, "etcd", "alarm"); !strings.Contains(r.Stdout, "there is no alarm") {
			return fmt.Errorf("%s%s", r.Stdout, r.Stderr)
		}
		return nil
	})

	// A server that is removed leaves its alarm.
	fill(t, first, small)
	small.Kill9(t)
	if r := first.RunBinary(t, "etcd", "remove", small.NodeName()); r.Code != 0 {
		t.Logf("while etcd refuses writes, a removal may not be recorded: %s", r.Stderr)
	}
	harness.Eventually(t, 3*time.Minute, "the others to write without the server that was removed", func() error {
		return write(t.Context(), t, first, "removed")
	})
	if r := first.RunBinary(t, "etcd", "alarm", "disarm"); r.Code != 0 {
		t.Errorf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// TestFullOfThree: the databases of three servers are full. Once there is room, each clears its alarm, and no two
// defragment at a time: `make bench-ha`.
func TestFullOfThree(t *testing.T) {
	number(t, "KUBELITH_LEADER_KILLS")
	c := start(t, harness.Options{Args: []string{noNode, smallQuota}, NoWait: true})
	c.servers[0].WaitAPI(t)
	for range 2 {
		c.add(t, smallQuota)
	}
	first := c.leader(t)
	for _, s := range c.servers {
		fill(t, first, s)
	}
	if r := first.RunBinary(t, "etcd", "alarm"); strings.Count(r.Stdout, "NOSPACE") != len(c.servers) {
		t.Errorf("etcd alarm: status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	full := time.Now()
	deleteBig(t, first)
	harness.Eventually(t, 5*time.Minute, "all to write, and no alarm", func() error {
		for _, s := range c.servers {
			if err := write(t.Context(), t, s, fmt.Sprintf("room-%s-%d", s.NodeName(), time.Now().UnixNano())); err != nil {
				return err
			}
			if !strings.Contains(s.Logs(), "has room again") {
				return fmt.Errorf("the database of %s has no room", s.NodeName())
			}
		}
		if r := first.RunBinary(t, "etcd", "alarm"); !strings.Contains(r.Stdout, "there is no alarm") {
			return fmt.Errorf("%s%s", r.Stdout, r.Stderr)
		}
		return nil
	})
	t.Logf("all write %s after the deletes", time.Since(full).Round(100*time.Millisecond))
	var all []span
	for _, s := range c.servers {
		own := defragmentations(t, s)
		if len(own) == 0 {
			t.Errorf("%s has not defragmented", s.NodeName())
		}
		all = append(all, own...)
	}
	slices.SortFunc(all, func(a, b span) int { return a.from.Compare(b.from) })
	for i := range all[1:] {
		if all[i+1].from.Before(all[i].to) {
			t.Errorf("two servers defragmented at once: %v", all[i:i+2])
		}
	}
}

// span is a time.
type span struct{ from, to time.Time }

// defragmentations returns when a server defragmented, by its log.
func defragmentations(t *testing.T, s *harness.Server) (all []span) {
	t.Helper()
	for line := range strings.Lines(s.Logs()) {
		begins := strings.Contains(line, "component=etcd starting defragment")
		if !begins && !strings.HasSuffix(line, "component=etcd finished defragment\n") {
			continue
		}
		at, err := time.Parse(time.RFC3339, strings.Fields(line)[0])
		switch {
		case err != nil:
			t.Fatal(err)
		case begins:
			all = append(all, span{from: at, to: at.Add(time.Hour)})
		case len(all) > 0:
			all[len(all)-1].to = at
		}
	}
	return all
}
