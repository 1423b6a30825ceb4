package controllermanager

import (
	"context"
	"fmt"
	"os"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	serviceaccountcontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"kubelith.io/kubelith/base/client"
)

// tokens is the controller that fills Secrets of type service-account-token.
type tokens struct {
	controller *serviceaccountcontroller.TokensController
	workers    int
}

var _ app.Controller = tokens{}

func (t tokens) Name() string            { return names.ServiceAccountTokenController }
func (t tokens) Run(ctx context.Context) { t.controller.Run(ctx, t.workers) }

// tokensController is upstream's newServiceAccountTokenController, whose
// constructor is not exported.
// Source: cmd/kube-controller-manager/app/controllermanager.go and core.go.
func (s *Server) tokensController(ctx context.Context, cc app.ControllerContext) (tokens, error) {
	c := cc.ComponentConfig.SAController
	key, err := keyutil.PrivateKeyFromFile(c.ServiceAccountKeyFile)
	if err != nil {
		return tokens{}, fmt.Errorf("service-account key: %w", err)
	}
	rootCA, err := os.ReadFile(c.RootCAFile)
	if err != nil {
		return tokens{}, err
	}
	cs, err := kubernetes.NewForConfig(s.opts.Client.Config(client.ControllerManager))
	if err != nil {
		return tokens{}, err
	}
	generator, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return tokens{}, fmt.Errorf("service-account key: %w", err)
	}
	controller, err := serviceaccountcontroller.NewTokensController(klog.FromContext(ctx),
		cc.InformerFactory.Core().V1().ServiceAccounts(), cc.InformerFactory.Core().V1().Secrets(), cs,
		serviceaccountcontroller.TokensControllerOptions{TokenGenerator: generator, RootCA: rootCA})
	if err != nil {
		return tokens{}, err
	}
	return tokens{controller, int(c.ConcurrentSATokenSyncs)}, nil
}
