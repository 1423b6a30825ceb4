package jointoken

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"

	"kubelith.io/kubelith/base/names"
)

const (
	// ClusterInfoPath is read by a machine before it trusts the server, and therefore without credentials.
	ClusterInfoPath = "/api/v1/namespaces/kube-public/configmaps/" + bootstrapapi.ConfigMapClusterInfo
	// maxAnswer is more than a ConfigMap can hold.
	maxAnswer = 2 << 20
	// maxSkew is how far the clocks may be apart: certificates are valid from five minutes before they are signed.
	maxSkew = 5 * time.Minute
)

// clusterInfo is what a server shows to any client.
type clusterInfo struct {
	data map[string]string // of the ConfigMap
	date time.Time         // the server's clock; zero when unknown
}

// Discover returns the CA of the cluster at server, if it is the one that the token names and the clocks agree. doubt
// is the reason why the server will refuse the token; the server itself gives none. It sends nothing secret.
func Discover(ctx context.Context, server string, t Token) (ca *x509.Certificate, doubt, err error) {
	info, err := readClusterInfo(ctx, server)
	if err != nil {
		return nil, nil, err
	}
	if ca, err = pinned(info.data[bootstrapapi.KubeConfigKey], t.CAHash); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", server, err)
	}
	if err := checkClock(info.date, time.Now()); err != nil {
		return nil, nil, NewRefusal(err, names.RefusedClock)
	}
	return ca, checkSignature(info.data, t), nil
}

// checkSignature compares the signatures with the token: the server signs with each token that it knows.
func checkSignature(data map[string]string, t Token) error {
	signature, ok := data[bootstrapapi.JWSSignatureKeyPrefix+t.ID]
	if !ok {
		return fmt.Errorf("the server does not know token %s: it has expired or was deleted, create another with kubelith token create on the server", t.ID)
	}
	if !jws.DetachedTokenIsValid(signature, data[bootstrapapi.KubeConfigKey], t.ID, t.Secret) {
		return fmt.Errorf("the secret of token %s is wrong: use the whole token as kubelith token create printed it", t.ID)
	}
	return nil
}

// readClusterInfo does not verify the server: the answer is checked against the token, and the request reveals nothing.
func readClusterInfo(ctx context.Context, server string) (*clusterInfo, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(server, "/")+ClusterInfoPath, nil)
	if err != nil {
		return nil, fmt.Errorf("server %s: %w", server, err)
	}
	request.Header.Set("Accept", "application/json")
	response, err := anonymousClient().Do(request)
	if err != nil {
		var why *url.Error
		if errors.As(err, &why) {
			err = why.Err
		}
		return nil, fmt.Errorf("the server %s does not answer (%w): "+
			"check that it runs, that --server is correct, and that no firewall or proxy is in between", server, err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, fmt.Errorf("the server %s refuses anonymous reads of cluster-info (HTTP %d): remove anonymous-auth and "+
			"authentication-config from its --apiserver-arg, or let anonymous requests read it", server, response.StatusCode)
	case http.StatusNotFound:
		return nil, fmt.Errorf("the server %s publishes no cluster-info: wait until it is ready, or upgrade it", server)
	default:
		return nil, fmt.Errorf("the server %s is not ready (HTTP %d): try again, or check its log", server, response.StatusCode)
	}
	var object struct{ Data map[string]string }
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(&object); err != nil {
		return nil, fmt.Errorf("%s is not an API server (%w): correct --server", server, err)
	}
	info := &clusterInfo{data: object.Data}
	info.date, _ = http.ParseTime(response.Header.Get("Date")) // otherwise it stays zero
	return info, nil
}

// anonymousClient returns a client that neither has credentials nor verifies the server.
func anonymousClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
			DisableKeepAlives: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// pinned returns the CA of a kubeconfig whose public key has the hash.
func pinned(kubeconfig, hash string) (*x509.Certificate, error) {
	config, err := clientcmd.Load([]byte(kubeconfig))
	if err != nil {
		return nil, fmt.Errorf("its cluster-info cannot be decoded: %w", err)
	}
	for _, cluster := range config.Clusters {
		certs, err := certutil.ParseCertsPEM(cluster.CertificateAuthorityData)
		if err != nil {
			continue
		}
		for _, ca := range certs {
			if SPKIHash(ca) == hash {
				return ca, nil
			}
		}
	}
	return nil, NewRefusal(errors.New("the server's CA is not the token's: the token is for another cluster or from before "+
		"the CA was replaced, or the connection is intercepted; check --server and the token"), names.RefusedCA)
}

// checkClock compares the clocks: with a different time certificates would not be valid yet, or no longer.
func checkClock(server, ours time.Time) error {
	if server.IsZero() {
		return nil
	}
	skew := ours.Sub(server)
	which := "ahead of"
	if skew < 0 {
		skew, which = -skew, "behind"
	}
	if skew <= maxSkew {
		return nil
	}
	return fmt.Errorf("the clock of this machine is %s %s the server's: set it", skew.Round(time.Minute), which)
}
