// Package sealed is how a server gets a secret from another one: by name, in an answer that only it can decrypt.
// So secrets travel from server to server, and are never in etcd.
package sealed

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"filippo.io/age"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/names"
)

const (
	// fetchTimeout bounds the request to one server.
	fetchTimeout = 5 * time.Second
	// maxMessage bounds a request and its answer, in bytes.
	maxMessage = 64 << 10
)

// Identity returns the certificate with which a server calls others, and the CAs that they are verified against.
type Identity func() (tls.Certificate, *x509.CertPool, error)

// Refusal is why a request is not met; it is for a person.
type Refusal string

func (r Refusal) Error() string { return string(r) }

// request is what a server sends, and answer what it gets.
type request struct {
	Key       string `json:"key"`       // the name of the secret
	Recipient string `json:"recipient"` // a public key of age, made for this request
}

type answer struct {
	Sealed []byte `json:"sealed"` // the secret in JSON, encrypted for the recipient
}

// Fetch asks the servers of the cluster, at a path of their API, for a secret until one has it, and decodes it into
// secret.
func Fetch(ctx context.Context, cs kubernetes.Interface, identity Identity, path, name string, secret any) error {
	return AskServers(ctx, cs, identity, fetchTimeout, func(client *http.Client, address string) error {
		return Ask(ctx, client, address, path, name, secret)
	})
}

// AskServers calls ask with the address, HOST:PORT, of one server of the cluster after the other until it returns nil,
// or returns the error of each, in one line. The client has this server's identity; timeout bounds each request.
func AskServers(
	ctx context.Context, cs kubernetes.Interface, identity Identity, timeout time.Duration,
	ask func(client *http.Client, address string) error,
) error {
	slice, err := cs.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return err
	}
	cert, roots, err := identity()
	if err != nil {
		return err
	}
	caller := &http.Client{Timeout: timeout, Transport: client.ServerTransport(roots, cert)}
	var said []string
	for _, port := range slice.Ports {
		for _, endpoint := range slice.Endpoints {
			for _, address := range endpoint.Addresses {
				if port.Port == nil {
					continue
				}
				err := ask(caller, net.JoinHostPort(address, strconv.Itoa(int(*port.Port))))
				if err == nil {
					return nil
				}
				said = append(said, OneLine(err))
			}
		}
	}
	if len(said) == 0 {
		return errors.New("no server is known")
	}
	return errors.New(strings.Join(said, "; "))
}

// Ask asks the server at an address, HOST:PORT.
func Ask(ctx context.Context, client *http.Client, address, path, name string, secret any) error {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return err
	}
	body, err := json.Marshal(request{Key: name, Recipient: identity.Recipient().String()})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	response, err := client.Do(req)
	if err != nil {
		var why *url.Error
		if errors.As(err, &why) {
			err = why.Err
		}
		return fmt.Errorf("%s does not answer: %w", address, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxMessage))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		var no metav1.Status
		if json.Unmarshal(text, &no) == nil && no.Message != "" {
			return fmt.Errorf("%s: %s", address, no.Message)
		}
		return fmt.Errorf("%s: HTTP %d", address, response.StatusCode)
	}
	var a answer
	if err := json.Unmarshal(text, &a); err != nil {
		return err
	}
	plain, err := age.Decrypt(bytes.NewReader(a.Sealed), identity)
	if err != nil {
		return err
	}
	return json.NewDecoder(io.LimitReader(plain, maxMessage)).Decode(secret)
}

// Give serves one request of Fetch, to a server of the cluster only. The request has been authorized; find returns the
// secret with a name.
func Give(w http.ResponseWriter, req *http.Request, servers []string, find func(name string) (any, error)) {
	sealed, err := give(req, servers, find)
	Answer(w, sealed, err)
}

func give(req *http.Request, servers []string, find func(name string) (any, error)) (*answer, error) {
	who, ok := apirequest.UserFrom(req.Context())
	if !ok || !slices.Contains(who.GetGroups(), names.Servers) {
		return nil, Refusal("only servers get keys")
	}
	name, ok := strings.CutPrefix(who.GetName(), names.ServerUserPrefix)
	if !ok || !slices.Contains(servers, name) {
		return nil, Refusal(fmt.Sprintf("%s is no server of the cluster", who.GetName()))
	}
	var r request
	if err := json.NewDecoder(io.LimitReader(req.Body, maxMessage)).Decode(&r); err != nil {
		return nil, Refusal(fmt.Sprintf("the request cannot be read: %v", err))
	}
	recipient, err := age.ParseX25519Recipient(r.Recipient)
	if err != nil {
		return nil, Refusal(fmt.Sprintf("the key for the answer cannot be read: %v", err))
	}
	secret, err := find(r.Key)
	if err != nil {
		return nil, err
	}
	sealed, err := Seal(secret, recipient)
	if err != nil {
		return nil, err
	}
	return &answer{sealed}, nil
}

// Seal returns v in JSON, encrypted for a recipient.
func Seal(v any, to age.Recipient) ([]byte, error) {
	plain, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w, err := age.Encrypt(&out, to)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Answer sends v or, as clients of the API expect it, a Status with the error.
func Answer(w http.ResponseWriter, v any, err error) {
	if err == nil {
		Reply(w, http.StatusOK, v)
		return
	}
	var no Refusal
	failed := apierrors.NewInternalError(err).Status()
	if errors.As(err, &no) {
		failed.Reason, failed.Code, failed.Details = metav1.StatusReasonConflict, http.StatusConflict, nil
	}
	failed.TypeMeta, failed.Message = StatusType(), OneLine(err)
	Reply(w, int(failed.Code), failed)
}

// Reply sends v as JSON.
func Reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client is gone
}

// StatusType is the type of a Status of the API.
func StatusType() metav1.TypeMeta { return metav1.TypeMeta{APIVersion: "v1", Kind: "Status"} }

// OneLine returns an error as a single line.
func OneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
