package apiserver

import (
	"crypto/subtle"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	corelisters "k8s.io/client-go/listers/core/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstrapsecret "k8s.io/cluster-bootstrap/util/secrets"
	bootstraptoken "k8s.io/cluster-bootstrap/util/tokens"

	"kubelith.io/kubelith/base/names"
)

// refusals is how many refused joins are logged at once; then it is one per second, because any client can cause them.
const refusals = 10

// joinRefusal returns the reason of a machine that does not join: it refuses this server before or after it shows a
// token, and requests one of these paths, which do not exist (base/jointoken). It returns "" for every other
// path. Any client can send such a request; therefore the log has only our own words.
func joinRefusal(path string) string {
	switch path {
	case names.RefusedCA:
		return "its token is for a cluster with another CA"
	case names.RefusedClock:
		return "its clock and the server's are more than five minutes apart"
	case names.RefusedVersion:
		return "its Kubernetes is newer than the server's"
	}
	return ""
}

// logRefusedTokens logs why a machine does not join: either its bootstrap token is not accepted, which upstream logs
// only at a higher verbosity, or it has refused this server.
func (s *Server) logRefusedTokens(configured authenticator.Request) authenticator.Request {
	return &refusedTokens{
		Request: configured,
		secrets: func() corelisters.SecretNamespaceLister {
			return s.shared.Core().V1().Secrets().Lister().Secrets(metav1.NamespaceSystem)
		},
		log:   s.opts.Log,
		limit: rate.NewLimiter(rate.Every(time.Second), refusals),
	}
}

type refusedTokens struct {
	authenticator.Request
	secrets func() corelisters.SecretNamespaceLister // read on use: it does not exist before
	log     logrus.FieldLogger
	limit   *rate.Limiter
}

// AuthenticateRequest implements authenticator.Request.
func (r *refusedTokens) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if req.URL != nil { // upstream authenticates the token of a TokenReview as a request without a URL
		if why := joinRefusal(req.URL.Path); why != "" && r.limit.Allow() {
			r.log.Warnf("a machine at %s reports that it cannot join: %s", req.RemoteAddr, why)
		}
	}
	// Upstream's authenticators remove the header from a request that they accept.
	bearer, isBearer := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
	response, ok, err := r.Request.AuthenticateRequest(req)
	if ok || !isBearer {
		return response, ok, err
	}
	id, secret, parseErr := bootstraptoken.ParseToken(strings.TrimSpace(bearer))
	if parseErr == nil && r.limit.Allow() {
		r.log.Warnf("refused token %s from %s: %s", id, req.RemoteAddr, r.why(id, secret))
	}
	return response, ok, err
}

// why follows upstream's checks, in their order. Source: plugin/pkg/auth/authenticator/token/bootstrap.
func (r *refusedTokens) why(id, secret string) string {
	s, err := r.secrets().Get(bootstrapapi.BootstrapTokenSecretPrefix + id)
	switch {
	case err != nil:
		return "it does not exist: it has expired, was deleted, or belongs to another cluster"
	case s.DeletionTimestamp != nil:
		return "it is being deleted"
	case s.Type != bootstrapapi.SecretTypeBootstrapToken:
		return fmt.Sprintf("its Secret has the type %s", s.Type)
	case subtle.ConstantTimeCompare([]byte(secret), s.Data[bootstrapapi.BootstrapTokenSecretKey]) != 1:
		return "its secret is wrong"
	case data(s, bootstrapapi.BootstrapTokenIDKey) != id:
		return "its Secret names another id"
	case bootstrapsecret.HasExpired(s, time.Now()):
		return "it expired at " + data(s, bootstrapapi.BootstrapTokenExpirationKey)
	case data(s, bootstrapapi.BootstrapTokenUsageAuthentication) != "true":
		return "it was created without the usage authentication"
	}
	if _, err := bootstrapsecret.GetGroups(s); err != nil {
		return err.Error()
	}
	return "the API server does not accept bootstrap tokens"
}

func data(s *corev1.Secret, key string) string { return bootstrapsecret.GetData(s, key) }
