package node

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/controlplane/servers"
	"kubelith.io/kubelith/host/preflight"
)

// TestWitnessComponents: a witness runs etcd and what maintains it, and creates nothing before it runs.
func TestWitnessComponents(t *testing.T) {
	cfg := planned(t, func(c *config.Server) { c.Witness = true })
	components, err := witness(cfg, &machine{pki: &pki.Bundle{}}, silent())
	if err != nil {
		t.Fatal(err)
	}
	if got := namesOf(components); !slices.Equal(got, []string{"certificates", "etcd", "servers"}) {
		t.Errorf("components %v", got)
	}
	if !absent(cfg.DataDir) || !absent(cfg.RunDir) {
		t.Error("it created a directory")
	}
}

// TestFindForWitness: what a directory was before decides, and each refusal is one line with the remedy.
func TestFindForWitness(t *testing.T) {
	const url = "https://192.0.2.9:2380"
	for name, tc := range map[string]struct {
		stored  *servers.Membership
		data    bool
		witness bool
		want    string // error; empty: none
	}{
		"a new one without a server":       {nil, false, true, "add --server https://HOST:6443 and --token-file FILE"},
		"a lone server's data":             {nil, true, true, "is a server's: leave out --witness"},
		"a server's of several":            {&servers.Membership{PeerURL: url}, true, true, "is a server's: leave out --witness"},
		"its own":                          {&servers.Membership{PeerURL: url, Witness: true}, true, true, ""},
		"its own, removed":                 {&servers.Membership{PeerURL: url, Witness: true, Removed: true}, true, true, "has to join again (it was removed from the cluster)"},
		"its own, without the data":        {&servers.Membership{PeerURL: url, Witness: true}, false, true, "has to join again (its data is gone)"},
		"a witness' without the flag":      {&servers.Membership{PeerURL: url, Witness: true}, true, false, "is a witness': start it with --witness"},
		"a witness' without data and flag": {&servers.Membership{PeerURL: url, Witness: true}, false, false, "is a witness': start it with --witness"},
	} {
		cfg := planned(t, func(c *config.Server) { c.Witness = tc.witness })
		if tc.stored != nil {
			if err := tc.stored.Save(cfg.DataDir); err != nil {
				t.Fatal(err)
			}
		}
		if tc.data {
			if err := os.MkdirAll(filepath.Join(cfg.DataDir, "server", "db", "member", "wal", "0.wal"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		m, err := findServers(t.Context(), cfg, silent())
		switch {
		case tc.want == "" && (err != nil || m.newcomer != nil || m.stored == nil):
			t.Errorf("%s: %+v, %v", name, m, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%s: error %v, want %q", name, err, tc.want)
		}
	}
}

// TestWitnessPreflight: a witness needs a port and a directory, and neither root nor what runs containers.
func TestWitnessPreflight(t *testing.T) {
	results := Preflight(t.Context(), planned(t, func(c *config.Server) { c.Witness = true; c.EtcdArgs = config.Args{"no-such-flag=1"} }))
	var names []string
	for _, r := range results {
		names = append(names, r.Name)
		if r.Name == "arguments" && r.Status != preflight.Fail {
			t.Errorf("a wrong argument: %s", r)
		}
	}
	for _, name := range []string{"arguments", "clock", "port 2380/tcp", "disk", "directories"} {
		if !slices.Contains(names, name) {
			t.Errorf("no check %s in %v", name, names)
		}
	}
	for _, name := range []string{"cgroups", "nft", "port 6443/tcp", "sysctls"} {
		if slices.Contains(names, name) {
			t.Errorf("a check of %s", name)
		}
	}
}

// TestWitnessCertificate: the certificate of a witness is for the address at which the others reach it, too.
func TestWitnessCertificate(t *testing.T) {
	const advertised = "198.51.100.7"
	of := filepath.Join(t.TempDir(), "tls")
	if _, err := pki.Ensure(pki.Options{Dir: of, NodeName: "server", ClusterDomain: "cluster.local"}); err != nil {
		t.Fatal(err)
	}
	files, err := pki.Shared(of, pki.ForWitness)
	if err != nil {
		t.Fatal(err)
	}
	cfg := planned(t, func(c *config.Server) { c.Witness, c.AdvertiseAddress = true, advertised })
	if err := pki.Place(tlsDir(cfg), files, pki.ForWitness); err != nil {
		t.Fatal(err)
	}
	bundle, err := ensurePeer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(bundle.Peer.Cert, bundle.Peer.Key)
	if err != nil {
		t.Fatal(err)
	}
	if url := peerURL(cfg); !strings.Contains(url, advertised) {
		t.Errorf("the others reach it at %s", url)
	}
	for _, name := range []string{advertised, cfg.NodeIP[0], cfg.NodeName} {
		if err := pair.Leaf.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
}
