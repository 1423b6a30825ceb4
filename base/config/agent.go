package config

import (
	"errors"
	"net/url"
	"strconv"
	"strings"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/tunnel"
)

// Agent is the configuration of an agent: the newest version of kind AgentConfig, and a table like Server.
type Agent struct {
	Node

	// How to join. A node that has joined needs no token any more.
	Server    string `json:"server" flag:"server"`
	Token     string `json:"token" flag:"token" env:"KUBELITH_TOKEN"`
	TokenFile string `json:"tokenFile" flag:"token-file"`

	// Tunnel is one of tunnel.Modes.
	Tunnel string `json:"tunnel" flag:"tunnel"`
}

// DefaultAgent returns the configuration that applies where neither file nor flags say otherwise. NodeName and NodeIP
// depend on the host and are empty, Server and the token have no default.
func DefaultAgent() *Agent { return &Agent{Node: defaultNode(), Tunnel: tunnel.Auto} }

// kind implements settings.
func (a *Agent) kind() string { return "AgentConfig" }

// disableable implements settings.
func (a *Agent) disableable() []string { return optional(Everywhere) }

// paths implements settings.
func (a *Agent) paths() map[string]*string {
	paths := a.Node.paths()
	paths["tokenFile"] = &a.TokenFile
	return paths
}

// Validate checks everything that can be known without the host and the server, like Server.Validate.
func (a *Agent) Validate() error {
	var p problems
	validateNode(&p, a)
	a.validateNodeIPs(&p, nil, nil)
	for _, l := range a.NodeLabels {
		// These labels decide how the cluster treats a node: the apiserver refuses a node that sets them itself.
		key, _, _ := strings.Cut(l, "=")
		if strings.HasPrefix(key, names.Prefix) && !ownLabel(key) { // validateNode has refused those
			p.add("nodeLabels", "an agent may not set the label %q on itself: set it on the server with kubelith kubectl label node", key)
		}
	}
	p.oneOf("tunnel", a.Tunnel, tunnel.Modes())
	validateJoin(&p, a.Server, a.Token, a.TokenFile)
	return errors.Join(p...)
}

// validateJoin checks how to find a cluster.
func validateJoin(p *problems, server, token, tokenFile string) {
	if why := checkServer(server); why != "" {
		p.add("server", "%s: write https://HOST:PORT with a server's name or address, as in https://192.0.2.10:6443", why)
	}
	if token != "" && tokenFile != "" {
		p.add("token", "%s is set as well: set only one of them", label("tokenFile"))
	}
}

// checkServer returns the error in the address of a server, or "".
func checkServer(address string) string {
	if address == "" {
		return "is empty"
	}
	quoted := strconv.Quote(address)
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Scheme != "https" || u.Hostname() == "":
		return quoted + " is not an https address"
	case u.Port() == "":
		return quoted + " has no port"
	case u.User != nil || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return quoted + " has more than a host and a port"
	}
	if port, err := strconv.ParseUint(u.Port(), 10, 16); err != nil || port == 0 {
		return quoted + " has an invalid port"
	}
	return ""
}
