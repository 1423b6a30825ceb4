package servers

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"kubelith.io/kubelith/base/jointoken"
)

// TestFindClock: a server whose clock is off does not join. The error has the difference, and comes before the server
// sends its token or writes anything.
func TestFindClock(t *testing.T) {
	for name, tc := range map[string]struct {
		off  time.Duration // of the cluster's clock
		want string
	}{
		"behind": {time.Hour, "the clock of this machine is 1h0m0s behind the server's: set it"},
		"ahead":  {-6 * time.Minute, "the clock of this machine is 6m0s ahead of the server's: set it"},
		"right":  {time.Minute, "does not know token abc123"}, // the next thing that is checked
	} {
		t.Run(name, func(t *testing.T) {
			var info []byte
			api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "" {
					t.Error("the token was sent")
				}
				w.Header().Set("Date", time.Now().Add(tc.off).UTC().Format(http.TimeFormat))
				_, _ = w.Write(info)
			}))
			defer api.Close()
			ca := api.Certificate()
			kubeconfig, err := clientcmd.Write(clientcmdapi.Config{Clusters: map[string]*clientcmdapi.Cluster{
				"": {CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})},
			}})
			if err != nil {
				t.Fatal(err)
			}
			if info, err = json.Marshal(map[string]any{"data": map[string]string{"kubeconfig": string(kubeconfig)}}); err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			n := &Newcomer{DataDir: dir, TLSDir: filepath.Join(dir, "tls"), Log: logrus.New()}
			err = n.Find(t.Context(), api.URL, jointoken.Token{CAHash: jointoken.SPKIHash(ca), ID: "abc123", Secret: "0123456789abcdef"}.String())
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, tc.want)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("it wrote %v, %v", left, err)
			}
		})
	}
}
