package dns

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
	logtest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/reconcile"
)

func TestParseCustom(t *testing.T) {
	for name, tc := range map[string]struct {
		data      map[string]string
		overrides string
		servers   []customServer
		wrong     string
	}{
		"none":            {nil, "", nil, ""},
		"of other things": {map[string]string{"README": "}", "x.include": "}"}, "", nil, ""},
		"overrides": {map[string]string{"b.override": "hosts {\n  192.0.2.7 a.example.org\n  fallthrough\n}", "a.override": "log # all\nrewrite name exact a.b \"c d\"\n"},
			"\tlog\n\trewrite name exact a.b \"c d\"\n\thosts {\n\t192.0.2.7 a.example.org\n\tfallthrough\n\t}\n", nil, ""},
		"the same directive twice": {map[string]string{"a.override": "forward a.example 192.0.2.1\nforward b.example 192.0.2.2"},
			"\tforward a.example 192.0.2.1\n\tforward b.example 192.0.2.2\n", nil, ""},
		"servers": {map[string]string{"a.server": "example.org:53 dns://example.com, a.example {\n  forward . 192.0.2.1 {\n policy sequential\n }\n cache 30\n}\n.:53 {\nerrors\n}"}, "",
			[]customServer{{[]string{"example.org", "example.com", "a.example"}, "\tcache 30\n\tforward . 192.0.2.1 {\n\tpolicy sequential\n\t}\n"}, {[]string{"."}, "\terrors\n"}}, ""},
		"reverse zones": {map[string]string{"a.server": "192.0.2.0/24 2001:db8::/32 192.0.2.0/24:53 {\n}"}, "", []customServer{{[]string{"192.0.2.0/24", "2001:db8::/32", "192.0.2.0/24"}, ""}}, ""},

		"a block that is not closed":     {map[string]string{"a.override": "hosts {"}, "", nil, "a.override: missing } at the end"},
		"a block that closes ours":       {map[string]string{"a.override": "log\n}\n. {\nerrors"}, "", nil, "a.override:2: unexpected }"},
		"a bracket too many":             {map[string]string{"a.override": "log\n}\n"}, "", nil, "a.override:2: unexpected }"},
		"an import":                      {map[string]string{"a.server": "import /etc/shadow\n"}, "", nil, "import is not supported here"},
		"an import in a block":           {map[string]string{"a.override": "import /etc/shadow\n"}, "", nil, "import is not supported here"},
		"where it listens":               {map[string]string{"a.override": "bind 192.0.2.1"}, "", nil, "a.override: bind cannot be set"},
		"who is answered":                {map[string]string{"a.server": "a.example {\nkubelith_sources 0.0.0.0/0\n}"}, "", nil, "kubelith_sources cannot be set"},
		"another port":                   {map[string]string{"a.server": "a.example:5353 {\n}"}, "", nil, "leave the port out"},
		"another protocol":               {map[string]string{"a.server": "tls://a.example {\n}"}, "", nil, "only DNS over UDP and TCP"},
		"a snippet":                      {map[string]string{"a.server": "(x) {\nlog\n}\n(x) {\n}"}, "", nil, "a.server"},
		"a zone that would be a block":   {map[string]string{"a.server": "\"a {\" {\nlog\n}"}, "", nil, "is not a zone"},
		"a zone that would be two lines": {map[string]string{"a.server": "\"a\nb\" {\nlog\n}"}, "", nil, "whitespace"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseCustom(tc.data)
			if tc.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wrong) {
					t.Errorf("%+v, %v, want %q", got, err, tc.wrong)
				}
				return
			}
			if err != nil || got.Overrides != tc.overrides || !reflect.DeepEqual(got.Servers, tc.servers) {
				t.Fatalf("got %q, %q, %v", got.Overrides, got.Servers, err)
			}
			// What is written is read as the same.
			written, err := parseCustom(map[string]string{"a.override": got.Overrides})
			if again, _ := parseCustom(map[string]string{"a.override": written.Overrides}); err != nil || again.Overrides != written.Overrides {
				t.Errorf("first %q, then %q, %v", written.Overrides, again.Overrides, err)
			}
		})
	}
}

func FuzzParseCustom(f *testing.F) {
	for _, text := range []string{"hosts {\n192.0.2.1 a\n}", "}\n. {", "a.example:53 {\nlog\n}", "\"a b\" \\\"", "import x", "{$HOME}", "(a) {\n}\na {\nimport a\n}", "a {\n{\n}\n}", "# {\nlog }"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, key := range []string{"a.override", "a.server"} {
			c, err := parseCustom(map[string]string{key: text})
			if err != nil {
				continue
			}
			out, err := corefile{Domain: "cluster.local", Bind: []string{"127.0.0.1"}, Allow: []string{"10.42.0.0/16"}, Custom: c}.render()
			if err != nil {
				t.Fatal(err)
			}
			// However it is written, each block listens where ours do and answers no other clients.
			blocks, err := parseBlocksOf(string(out))
			if err != nil {
				continue // CoreDNS refuses it, and the one before goes on
			}
			if len(blocks) != 1+len(c.Servers) {
				t.Fatalf("%q makes %d server blocks of %d:\n%s", text, len(blocks), 1+len(c.Servers), out)
			}
			for _, b := range blocks {
				if !reflect.DeepEqual(b["bind"], []string{"bind", "127.0.0.1"}) || !reflect.DeepEqual(b[sourcesPlugin], []string{sourcesPlugin, "10.42.0.0/16"}) {
					t.Fatalf("%q listens elsewhere:\n%s", text, out)
				}
			}
		}
	})
}

// parseBlocksOf reads a whole configuration as CoreDNS does: the words of each directive of each server block.
func parseBlocksOf(text string) (blocks []map[string][]string, err error) {
	parsed, err := caddyfile.Parse("Corefile", strings.NewReader(text), nil)
	for _, b := range parsed {
		words := map[string][]string{}
		for directive, tokens := range b.Tokens {
			for _, token := range tokens {
				words[directive] = append(words[directive], token.Text)
			}
		}
		blocks = append(blocks, words)
	}
	return blocks, err
}

// TestCustomizer: an error is reported once, and the previous configuration stays.
func TestCustomizer(t *testing.T) {
	configMap := func(text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: customNamespace, Name: names.DNSCustom}, Data: map[string]string{"a.override": text}}
	}
	cs := fake.NewClientset(configMap("log"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: customNamespace, Name: "another"}})
	log, lines := logtest.NewNullLogger()
	c := newCustomizer(cs, Options{Log: log, Events: true}, reconcile.NewSignal())
	defer c.watch(t.Context())()
	serving := custom{}
	await := func(want string) {
		t.Helper()
		waitFor(t, func() bool {
			serving = c.wanted(serving)
			return serving.Overrides == want
		})
	}
	await("\tlog\n")
	change := func(text string) {
		t.Helper()
		if _, err := cs.CoreV1().ConfigMaps(customNamespace).Update(t.Context(), configMap(text), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	change("hosts {")
	waitFor(t, func() bool { serving = c.wanted(serving); return len(lines.AllEntries()) > 0 })
	c.wanted(serving)
	if serving.Overrides != "\tlog\n" || len(lines.AllEntries()) != 1 || !strings.Contains(lines.LastEntry().Message, "a.override") {
		t.Errorf("serves %q; the log has %v", serving.Overrides, lines.AllEntries())
	}
	waitFor(t, func() bool {
		events, err := cs.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		return err == nil && len(events.Items) == 1 && events.Items[0].InvolvedObject.Name == names.DNSCustom && events.Items[0].Reason == "CustomRefused"
	})
	change("errors")
	await("\terrors\n")
	if err := cs.CoreV1().ConfigMaps(customNamespace).Delete(t.Context(), names.DNSCustom, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await("")
}

// TestFollow: CoreDNS is replaced for what has changed, and what cannot be served leaves the one before.
func TestFollow(t *testing.T) {
	log, lines := logtest.NewNullLogger()
	s := New(Options{Log: log})
	set := func(ip, upstream, added string) settings {
		return settings{ips: []net.IP{net.ParseIP(ip)}, upstreams: []string{upstream}, custom: custom{text: added}}
	}
	var refused []string
	var failing func(settings) bool
	follow := func(now *instance, want settings) *instance {
		return s.follow(now, want, func(with settings) (*instance, error) {
			if failing != nil && failing(with) {
				return nil, errors.New("it does not start")
			}
			return &instance{caddy: &caddy.Instance{}, settings: with}, nil
		}, func(c custom, _ error) { refused = append(refused, c.text) })
	}
	now := &instance{caddy: &caddy.Instance{}, settings: set("192.0.2.1", "192.0.2.53", "")}
	expect := func(what string, got *instance, want settings, same bool, told ...string) {
		t.Helper()
		if !got.equal(want) || (got == now) != same || !reflect.DeepEqual(refused, told) {
			t.Errorf("%s: %+v (the same: %v), refused %q, want %+v", what, got.settings, got == now, refused, want)
		}
		refused = nil
	}
	expect("nothing new", follow(now, set("192.0.2.1", "192.0.2.53", "")), now.settings, true)
	expect("another resolver", follow(now, set("192.0.2.1", "192.0.2.54", "")), set("192.0.2.1", "192.0.2.54", ""), false)
	if e := lines.LastEntry(); e == nil || e.Message != "the host's resolvers changed from [192.0.2.53] to [192.0.2.54]" {
		t.Errorf("the log says %v", e)
	}
	failing = func(with settings) bool { return with.custom.text == "bad" }
	expect("something wrong", follow(now, set("192.0.2.1", "192.0.2.53", "bad")), now.settings, true, "bad")
	expect("something wrong, and another resolver", follow(now, set("192.0.2.1", "192.0.2.54", "bad")), set("192.0.2.1", "192.0.2.54", ""), false, "bad")
	failing = func(settings) bool { return true }
	expect("no such address", follow(now, set("192.0.2.2", "192.0.2.53", "")), now.settings, true)
}

// TestUpstreams: resolvers that come late or change are found; a file that is being written takes none away.
func TestUpstreams(t *testing.T) {
	dir := t.TempDir()
	file, stub, behind := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "stub-resolv.conf"), filepath.Join(dir, "behind")
	s := New(Options{ResolvConf: func() string { return chooseResolvConf(file, behind) }})
	var now []string
	for _, step := range []struct {
		what string
		do   func()
		want string
	}{
		{"no file at the boot", func() {}, ""},
		{"a link to what is not there yet", func() {
			if err := os.Symlink(stub, file); err != nil {
				t.Fatal(err)
			}
		}, ""},
		{"systemd-resolved is up, without a network", func() { write(t, stub, "nameserver 127.0.0.53\n"); write(t, behind, "# none\n") }, ""},
		{"DHCP has answered", func() { write(t, behind, "nameserver 192.0.2.53\n") }, "192.0.2.53"},
		{"another network", func() { write(t, behind, "nameserver 198.51.100.53\nnameserver 198.51.100.54\n") }, "198.51.100.53 198.51.100.54"},
		{"another process writes", func() { write(t, behind, "") }, "198.51.100.53 198.51.100.54"},
		{"the file is gone", func() { os.Remove(behind) }, "198.51.100.53 198.51.100.54"},
		{"a file instead of the link", func() { os.Remove(file); write(t, file, "nameserver 203.0.113.53\n") }, "203.0.113.53"},
	} {
		step.do()
		now = s.upstreams(now)
		if got := strings.Join(now, " "); got != step.want {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
	}
}
