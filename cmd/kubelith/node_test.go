package kubelith

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/urfave/cli/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/components/controlplane/servers"
)

// TestRemoveServerWithoutNode: a server that is no node is removed, and that is no error; another name is one.
func TestRemoveServerWithoutNode(t *testing.T) {
	var gone string
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case req.URL.Path == names.ServersPath && req.Method == http.MethodGet:
			_ = json.NewEncoder(w).Encode(servers.View{Servers: []servers.Status{{Name: "s1"}, {Name: "s2"}}})
		case req.URL.Path == names.ServersPath && req.Method == http.MethodDelete:
			gone = req.URL.Query().Get("name")
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess})
		case req.Method == http.MethodGet && req.URL.Path == "/api/v1/namespaces/kube-system/secrets":
			_, _ = w.Write([]byte(`{"apiVersion": "v1", "kind": "SecretList", "items": []}`))
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}`))
		}
	}))
	defer api.Close()
	cs, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	remove := func(name string) (string, error) {
		var out bytes.Buffer
		args := flag.NewFlagSet("remove", flag.ContinueOnError)
		if err := args.Parse([]string{name}); err != nil {
			t.Fatal(err)
		}
		c := cli.NewContext(&cli.App{Writer: &out}, args, nil)
		c.Context = t.Context()
		err := removeNode(c, cs)
		return out.String(), err
	}
	if out, err := remove("s2"); err != nil || gone != "s2" || out != "server s2 is no longer in the cluster\n" {
		t.Errorf("%q, %v, gone is %q", out, err, gone)
	}
	if out, err := remove("s3"); err == nil || out != "" || gone != "s2" {
		t.Errorf("another name: %q, %v, gone is %q", out, err, gone)
	}
}
