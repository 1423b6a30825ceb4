package apiserver

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizerunion "k8s.io/apiserver/pkg/authorization/union"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"

	"kubelith.io/kubelith/components/client"
)

// trustProcess puts the in-process identities in front of upstream's
// authenticators and gives the apiserver's own loopback identity its rights.
func (s *Server) trustProcess(c *genericapiserver.Config) error {
	chain := []authenticator.Request{s.opts.Client, c.Authentication.Authenticator}
	if s.anonymousHealth && s.upstream.Authentication.AuthenticationConfigFile == "" {
		chain = append(chain, anonymous.NewAuthenticator([]apiserver.AnonymousAuthCondition{
			{Path: "/livez"}, {Path: "/readyz"}, {Path: "/healthz"},
		}))
	}
	// As upstream does: credentials that are wrong fail, they do not become anonymous.
	c.Authentication.Authenticator = union.NewFailOnError(chain...)

	loopback := authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if client.IsLoopback(ctx) && a.GetUser() != nil && a.GetUser().GetName() == client.APIServer {
			return authorizer.DecisionAllow, "the apiserver's own request", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	})
	var err error
	c.Authorization.Authorizer, err = authorizerunion.New(
		authorizerunion.NamedAuthorizer{AuthorizerName: "loopback", Authorizer: loopback},
		authorizerunion.NamedAuthorizer{AuthorizerName: "configured", Authorizer: c.Authorization.Authorizer})
	return err
}

// readyz returns a function that asks /readyz as the loopback identity; its
// error is what is not ready. See bootstrap for what is left out.
func readyz(c *client.InProcess) (func(context.Context) error, error) {
	cs, err := kubernetes.NewForConfig(c.Config(client.APIServer))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		var status int
		r := cs.Discovery().RESTClient().Get().AbsPath("/readyz").
			Param("exclude", "poststarthook/"+rbacrest.PostStartHookName).
			Param("exclude", "poststarthook/"+schedulingrest.PostStartHookName).Do(ctx).StatusCode(&status)
		if err := r.Error(); err != nil && status != http.StatusOK {
			return fmt.Errorf("/readyz: %w", err)
		}
		return nil
	}, nil
}
