package apiserver

import (
	"net/http"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"kubelith.io/kubelith/trace/api"
)

// allowTraces lets every authenticated user request timelines: the answer has the objects that the user may get. Nodes
// report what happens to their pods.
func allowTraces() []runtime.Object {
	return append(
		clusterRole("kubelith:traces", subject(rbacv1.GroupKind, user.AllAuthenticated),
			rbacv1.PolicyRule{NonResourceURLs: []string{api.TracePath, api.TracePath + "/*"}, Verbs: []string{"get"}}),
		clusterRole("kubelith:records", subject(rbacv1.GroupKind, user.NodesGroup),
			rbacv1.PolicyRule{NonResourceURLs: []string{api.RecordsPath}, Verbs: []string{"post"}})...)
}

// traced serves the timelines of the flight recorder beside the API.
func (s *Server) traced(build func(http.Handler, *genericapiserver.Config) http.Handler) func(http.Handler, *genericapiserver.Config) http.Handler {
	return func(next http.Handler, c *genericapiserver.Config) http.Handler {
		return build(api.NewHandler(s.opts.Record, c.Authorization.Authorizer, next), c)
	}
}
