package config

import (
	"strings"
	"testing"
)

// FuzzDecode reads what an operator may write as the configuration of a server and of an agent: nothing panics, and
// every error is in lines that name the file.
func FuzzDecode(f *testing.F) {
	f.Add("apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\nnodeName: a\ndisable: [dns]\nhttpsPort: 6443\n")
	f.Add("apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\nplugins:\n- name: a\n  kind: admission\n  path: /a\n  limits: {memory: 64Mi, uid: 1}\n  settings: {a: {b: [1, null]}}\n")
	f.Add("apiVersion: kubelith.io/v1alpha1\nkind: AgentConfig\nserver: https://a:1\nnodeTaints: ['a=b:NoSchedule']\nnodeIP: [192.0.2.1, '::1']\n")
	f.Add("apiVersion: &a kubelith.io/v1alpha1\nkind: ServerConfig\n<<: {nodeName: x}\nclusterDomain: *a\n")
	f.Add("a: &a [*a]\n")
	f.Add("--- \n# nothing\n...\n---\n")
	f.Add("kubeletArgs: [max-pods, '-x=1', '=', 'a b=c']\napiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, s := range []settings{Default(), DefaultAgent()} {
			if err := decode("f.yaml", []byte(text), s); err != nil {
				for line := range strings.Lines(err.Error()) {
					if !strings.HasPrefix(line, "f.yaml:") {
						t.Errorf("the line %q of the error does not name the file", line)
					}
				}
				continue
			}
			switch s := s.(type) {
			case *Server:
				s.Validate()
			case *Agent:
				s.Validate()
			}
		}
	})
}

// FuzzParseClusterInfo reads what a server sends to an agent.
func FuzzParseClusterInfo(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"kubelith.io/v1alpha1","kind":"ClusterInfo","clusterCIDR":["10.42.0.0/16"],"serviceCIDR":["10.43.0.0/16"]}`))
	f.Add([]byte(`{"apiVersion":"kubelith.io/v1alpha1","kind":"ClusterInfo","clusterCIDR":["x"],"serviceCIDR":[""],"clusterDNS":["y"]}`))
	f.Add([]byte(`{"apiVersion":"kubelith.io/v1alpha1","kind":"ClusterInfo","clusterCIDR":null}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		cluster, err := ParseClusterInfo(data)
		if err != nil {
			return
		}
		a := DefaultAgent()
		a.NodeIP = []string{"192.0.2.1", "2001:db8::1"}
		a.ValidateIn(cluster)
	})
}
