package client

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/names"
)

// Names of the identities that upstream's RBAC bootstrap policy knows.
// Source: k8s.io/apiserver/pkg/authentication/user and plugin/pkg/auth/authorizer/rbac/bootstrappolicy.
const (
	// APIServer is the apiserver's own loopback identity. Upstream puts it into system:masters; here its rights are
	// granted by name (see the apiserver component), so that no identity of the process is in that group.
	APIServer = user.APIServerUser
	// ControllerManager is the identity of the controller-manager outside of its single controllers: tokens, metadata
	// informers, discovery.
	ControllerManager = user.KubeControllerManager
	// Scheduler is the identity of the scheduler.
	Scheduler = user.KubeScheduler
	// Proxy is the identity of kube-proxy.
	Proxy = user.KubeProxy
	// DNS is the identity of cluster DNS; the apiserver component creates its role.
	DNS = "system:kubelith:dns"
	// Election is the identity with which servers elect the leader; it may write the Lease for that, in memory.
	Election = "system:kubelith:election"
	// Token and Approver let machines join; the apiserver component creates their roles.
	Token    = "system:kubelith:token"
	Approver = "system:kubelith:approver"
	// Servers is the identity with which a server admits others; the apiserver component creates its role.
	Servers = "system:kubelith:servers-admission"
	// Encryption is the identity that writes Secrets again with a new key; the apiserver component creates its role.
	Encryption = "system:kubelith:encryption"
	// CARotation is the identity that replaces the CAs; the apiserver component creates its role.
	CARotation = "system:kubelith:ca-rotation"
	// Manifests is the identity that applies manifests; it may do everything, since a file may hold any object.
	Manifests = "system:kubelith:manifests"
	// ServiceLB is the identity of the Service load balancer; the apiserver component creates its role.
	ServiceLB = "system:kubelith:servicelb"
	// Metrics is the identity that owns the resource metrics API's object; the apiserver component creates its role.
	Metrics = "system:kubelith:metrics"
	// Storage is the identity of the controllers of storage plugins; the apiserver component creates its role.
	Storage = "system:kubelith:storage"
	// StorageNodePrefix plus a node's name is the identity of those controllers on an agent, StorageNodes its group.
	// The node may act as it (components/controlplane/apiserver/restriction).
	StorageNodePrefix = "system:kubelith:storage-node:"
	StorageNodes      = "system:kubelith:storage-nodes"
	// Plugins is the identity that reports on plugins; the apiserver component creates its role.
	Plugins = "system:kubelith:plugins"
	// PluginPrefix begins the name of each plugin's own identity, which has no rights until an operator binds it.
	PluginPrefix = "system:kubelith:plugin:"
)

// Identities creates apiserver clients that act as a given user; an InProcess is one.
type Identities interface {
	// Config returns a client configuration for the user with that name and those groups.
	Config(name string, groups ...string) *rest.Config
	// ServiceAccountConfig returns a client configuration for a service account.
	ServiceAccountConfig(namespace, name string) *rest.Config
}

var _ Identities = (*InProcess)(nil)

// Configured returns all clients with what configure makes of their configurations.
func Configured(all Identities, configure func(*rest.Config) *rest.Config) Identities {
	return configured{all, configure}
}

type configured struct {
	all       Identities
	configure func(*rest.Config) *rest.Config
}

// Config implements Identities.
func (c configured) Config(name string, groups ...string) *rest.Config {
	return c.configure(c.all.Config(name, groups...))
}

// ServiceAccountConfig implements Identities.
func (c configured) ServiceAccountConfig(namespace, name string) *rest.Config {
	return c.configure(c.all.ServiceAccountConfig(namespace, name))
}

// IsRead reports whether a request changes nothing: a get, a list or a watch.
func IsRead(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// identityKey is the context key of the caller's user.Info.
type identityKey struct{}

// Config returns a client configuration that acts as the user with that name and those groups; system:authenticated is
// added. Bodies are protobuf where the API has it. There is no client-side rate limit: the apiserver's flow control is
// the limit, as its queue is in the same process. Paced limits how many writes a client has under way.
func (p *InProcess) Config(name string, groups ...string) *rest.Config {
	return p.config(&user.DefaultInfo{Name: name, Groups: append(append([]string{}, groups...), user.AllAuthenticated)})
}

// NodeConfig returns a client configuration that acts as the node (kubelet) with that name, so that the Node authorizer
// and NodeRestriction apply.
func (p *InProcess) NodeConfig(nodeName string) *rest.Config {
	return p.Config(names.NodeUserPrefix+nodeName, user.NodesGroup)
}

// ServiceAccountConfig returns a client configuration that acts as a service account. The account object need not
// exist.
func (p *InProcess) ServiceAccountConfig(namespace, name string) *rest.Config {
	u := serviceaccount.UserInfo(namespace, name, "").(*user.DefaultInfo)
	u.Groups = append(u.Groups, user.AllAuthenticated)
	return p.config(u)
}

func (p *InProcess) config(u user.Info) *rest.Config {
	return &rest.Config{
		Host:      p.url,
		Transport: &transport{server: p, user: u},
		QPS:       -1,
		UserAgent: "kubelith/" + u.GetName(),
		ContentConfig: rest.ContentConfig{
			ContentType:        "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
		DisableCompression: true,
		// Warnings are for authors of manifests; upstream's components use deprecated APIs on purpose, every few
		// seconds.
		WarningHandler: rest.NoWarnings{},
	}
}

var _ authenticator.Request = (*InProcess)(nil)

// AuthenticateRequest implements authenticator.Request: it recognises requests that came through this package's
// transport and no others.
func (p *InProcess) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	u, ok := identityFrom(req.Context())
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: u}, true, nil
}

func withIdentity(ctx context.Context, u user.Info) context.Context {
	return context.WithValue(ctx, identityKey{}, u)
}

func identityFrom(ctx context.Context) (user.Info, bool) {
	u, ok := ctx.Value(identityKey{}).(user.Info)
	return u, ok
}

// IsInProcess reports whether ctx belongs to a request that a component of this process sent in memory.
func IsInProcess(ctx context.Context) bool {
	_, ok := identityFrom(ctx)
	return ok
}

// IsLoopback reports whether ctx belongs to a request that the apiserver sent to itself in memory. A certificate or
// token for the same name does not count.
func IsLoopback(ctx context.Context) bool {
	u, ok := identityFrom(ctx)
	return ok && u.GetName() == APIServer
}
