package apiserver

import (
	"context"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizerunion "k8s.io/apiserver/pkg/authorization/union"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/jointoken"
	"kubelith.io/kubelith/components/controlplane/apiserver/restriction"
)

// trustProcess adds the in-process identities and the password file before upstream's authenticators, gives the
// apiserver's own loopback identity its rights and lets nodes impersonate their storage controllers.
func (s *Server) trustProcess(c *genericapiserver.Config) error {
	chain := []authenticator.Request{s.opts.Client}
	if s.passwords != nil { // before upstream's: they may end with the anonymous user, who needs no password
		chain = append(chain, group.NewAuthenticatedGroupAdder(s.passwords))
	}
	chain = append(chain, s.logRefusedTokens(c.Authentication.Authenticator))
	if s.anonymousHealth && s.upstream.Authentication.AuthenticationConfigFile == "" {
		chain = append(chain, anonymous.NewAuthenticator([]apiserver.AnonymousAuthCondition{
			{Path: "/livez"}, {Path: "/readyz"}, {Path: "/healthz"}, {Path: jointoken.ClusterInfoPath},
		}))
	}
	// As upstream does: a request with wrong credentials fails; it does not become anonymous.
	c.Authentication.Authenticator = withURL(s.removals.refuse(union.NewFailOnError(chain...)))

	loopback := authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if client.IsLoopback(ctx) && a.GetUser() != nil && a.GetUser().GetName() == client.APIServer {
			return authorizer.DecisionAllow, "the apiserver's own request", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	})
	var err error
	c.Authorization.Authorizer, err = authorizerunion.New(
		authorizerunion.NamedAuthorizer{AuthorizerName: "loopback", Authorizer: loopback},
		authorizerunion.NamedAuthorizer{AuthorizerName: "election", Authorizer: authorizer.AuthorizerFunc(authorizeElection)},
		authorizerunion.NamedAuthorizer{AuthorizerName: "storage-of-nodes", Authorizer: restriction.Impersonation()},
		authorizerunion.NamedAuthorizer{AuthorizerName: "configured", Authorizer: c.Authorization.Authorizer})
	if err != nil {
		return err
	}
	c.Authorization.Authorizer = s.recorder.authorizer(c.Authorization.Authorizer)
	return nil
}
