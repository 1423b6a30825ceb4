package encryption

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/base/pki"
)

var day0 = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func keysOf(names ...string) (keys []pki.EncryptionKey) {
	for _, n := range names {
		keys = append(keys, pki.EncryptionKey{Name: n, Secret: "of " + n})
	}
	return keys
}

func namesOf(keys []pki.EncryptionKey) (names []string) {
	for _, k := range keys {
		names = append(names, k.Name)
	}
	return names
}

func TestArrange(t *testing.T) {
	for phase, want := range map[Phase]string{
		"": "old older new", phaseDistribute: "old older new", phaseWrite: "new old older", phaseRewrite: "new old older", phaseDrop: "new", phaseDone: "old older new",
	} {
		keys := keysOf("old", "older", "new")
		if got := strings.Join(namesOf(State{Key: "new", Phase: phase}.arrange(keys)), " "); got != want {
			t.Errorf("%s: %s, want %s", phase, got, want)
		}
		if !slices.Equal(keys, keysOf("old", "older", "new")) {
			t.Errorf("%s: the keys were changed in place: %v", phase, keys)
		}
		if got := (State{Key: "lost", Phase: phase}).arrange(keys); !slices.Equal(got, keys) {
			t.Errorf("%s, without the new key: %v", phase, got)
		}
	}
}

// TestNext: a phase begins when every server has done what the one before requires.
func TestNext(t *testing.T) {
	reads := func(keys ...string) Report { return Report{Writes: keys[0], Reads: keys} }
	for name, tc := range map[string]struct {
		phase     Phase
		b         Report // of the second server
		servers   []string
		remaining int
		want      Phase
		waiting   string
	}{
		"all read it":           {phase: phaseDistribute, b: reads("old", "new"), want: phaseWrite},
		"one does not":          {phase: phaseDistribute, b: reads("old"), waiting: "server b: it has not loaded the new key"},
		"one never reported":    {phase: phaseDistribute, waiting: "server b: it has not reported"},
		"one has a problem":     {phase: phaseDistribute, b: Report{Writes: "old", Reads: []string{"old", "new"}, Problem: "disk full"}, waiting: "server b: disk full"},
		"one is joining":        {phase: phaseDistribute, b: reads("old", "new"), servers: []string{"a", "b", ""}, waiting: "a joining server"},
		"no server is known":    {phase: phaseDistribute, b: reads("old", "new"), servers: []string{}, waiting: "the servers are not known"},
		"all write with it":     {phase: phaseWrite, b: reads("new", "old"), want: phaseRewrite},
		"one does not write so": {phase: phaseWrite, b: reads("old", "new"), waiting: "server b: it does not encrypt with the new key yet"},
		"all is rewritten":      {phase: phaseRewrite, b: reads("new", "old"), want: phaseDrop},
		"not all is rewritten":  {phase: phaseRewrite, b: reads("new", "old"), remaining: 3, waiting: "3 Secrets"},
		"one writes otherwise":  {phase: phaseRewrite, b: reads("old", "new"), waiting: "server b: it does not encrypt with the new key yet"},
		"all have dropped":      {phase: phaseDrop, b: reads("new"), want: phaseDone},
		"one has not":           {phase: phaseDrop, b: reads("new", "old"), waiting: "server b: it has not dropped the other keys"},
	} {
		t.Run(name, func(t *testing.T) {
			a := map[Phase]Report{phaseDistribute: reads("old", "new"), phaseWrite: reads("new", "old"), phaseRewrite: reads("new", "old"), phaseDrop: reads("new")}[tc.phase]
			servers := tc.servers
			if servers == nil {
				servers = []string{"a", "b"}
			}
			next, waiting := State{Key: "new", Phase: tc.phase}.next(servers, map[string]Report{"a": a, "b": tc.b}, tc.remaining, day0)
			want := tc.want
			if want == "" {
				want = tc.phase
			}
			if next.Phase != want || waiting != tc.waiting || (want == phaseDone) != next.Finished.Equal(day0) {
				t.Errorf("%+v, waiting for %q", next, waiting)
			}
		})
	}
}

// TestReadable: whatever servers do when, and whenever they die or join, each can read every Secret that any of them
// has written, and in the end only the new key is left.
func TestReadable(t *testing.T) {
	type server struct {
		file, loaded []pki.EncryptionKey
	}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		servers, reports := map[string]*server{}, map[string]Report{}
		var all []string
		join := func() {
			name, keys := fmt.Sprintf("s%d", len(all)), keysOf("old")
			if len(all) > 0 { // as it was admitted: with the file of another server
				keys = servers[all[r.IntN(len(all))]].file
			}
			all = append(all, name)
			servers[name] = &server{file: keys, loaded: keys}
		}
		for range 1 + r.IntN(3) {
			join()
		}
		secrets := make([]string, 5)
		for i := range secrets {
			secrets[i] = "old"
		}
		servers[all[0]].file = with(servers[all[0]].file, keysOf("new")[0])
		st := State{Key: "new", Phase: phaseDistribute}
		for step := 0; st.Active(); step++ {
			if step > 20000 {
				t.Fatalf("seed %d: still in phase %s: %+v", seed, st.Phase, reports)
			}
			name := all[r.IntN(len(all))]
			s := servers[name]
			switch r.IntN(7) {
			case 0: // it brings its file in line
				if !has(s.file, "new") {
					from := servers[all[r.IntN(len(all))]]
					if !has(from.file, "new") {
						continue
					}
					s.file = with(s.file, keysOf("new")[0])
				}
				s.file = st.arrange(s.file)
			case 1: // it loads the file, as after a restart, and reports
				s.loaded = s.file
				reports[name] = Report{Writes: s.loaded[0].Name, Reads: namesOf(s.loaded)}
			case 2: // it dies, and starts
				s.loaded = s.file
			case 3: // a client writes a Secret
				secrets[r.IntN(len(secrets))] = s.loaded[0].Name
			case 4: // the one that leads rewrites one
				if i := r.IntN(len(secrets)); st.Phase == phaseRewrite && secrets[i] != "new" {
					secrets[i] = s.loaded[0].Name
				}
			case 5:
				remaining := 0
				for _, key := range secrets {
					if key != "new" {
						remaining++
					}
				}
				st, _ = st.next(all, reports, remaining, day0)
			case 6:
				if len(all) < 5 && r.IntN(50) == 0 {
					join()
				}
			}
			for name, s := range servers {
				for _, key := range secrets {
					if !has(s.loaded, key) || !has(s.file, key) {
						t.Fatalf("seed %d, step %d, phase %s: server %s cannot read a Secret with key %s: file %v, loaded %v", seed, step, st.Phase, name, key, namesOf(s.file), namesOf(s.loaded))
					}
				}
			}
		}
		for name, s := range servers {
			if got := strings.Join(namesOf(s.file), " "); got != "new" {
				t.Errorf("seed %d: server %s ends with %s", seed, name, got)
			}
		}
	}
}

func TestKeyOf(t *testing.T) {
	for value, want := range map[string]string{
		"k8s:enc:secretbox:v1:key1:\x00\x01:": "key1",
		"k8s:enc:aescbc:v1:key1:abc":          "aescbc:key1",
		"k8s:enc:broken":                      "unknown",
		"k8s\x00\n\x0c":                       "",
		"":                                    "",
	} {
		if got := keyOf([]byte(value)); got != want {
			t.Errorf("%q: %q, want %q", value, got, want)
		}
	}
}

// TestStored: a rotation that began with an earlier release goes on.
func TestStored(t *testing.T) {
	const stored, reported = `{"key":"new","phase":"write","started":"2030-01-01T00:00:00Z"}`, `{"writes":"old","reads":["old","new"],"problem":"disk full"}`
	var st State
	var r Report
	if err := errors.Join(json.Unmarshal([]byte(stored), &st), json.Unmarshal([]byte(reported), &r)); err != nil {
		t.Fatal(err)
	}
	if want := (State{Key: "new", Phase: phaseWrite, Started: day0}); st != want {
		t.Errorf("%+v, want %+v", st, want)
	}
	if r.Writes != "old" || !slices.Equal(r.Reads, []string{"old", "new"}) || r.Problem != "disk full" {
		t.Errorf("%+v", r)
	}
	for want, v := range map[string]any{stored: st, reported: r} {
		if text, err := json.Marshal(v); err != nil || string(text) != want {
			t.Errorf("%s, %v, want %s", text, err, want)
		}
	}
}
