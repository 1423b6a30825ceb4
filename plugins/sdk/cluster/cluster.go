// Package cluster connects a plugin to the apiserver. It is separate so that other plugins do not link client-go.
package cluster

import (
	"errors"
	"fmt"
	"os"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"kubelith.io/kubelith/plugins/proto"
)

// Config returns a configuration for the apiserver with the identity that the host created for this plugin. On agents
// it is an error.
func Config() (*rest.Config, error) {
	path := os.Getenv(proto.KubeconfigVariable)
	if path == "" {
		return nil, errors.New(proto.KubeconfigVariable + " is not set: run the plugin on a server, or check it with --kubeconfig")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", proto.KubeconfigVariable, err)
	}
	return config, nil
}

// Dynamic returns a client for objects of any kind.
func Dynamic() (dynamic.Interface, error) {
	config, err := Config()
	if err != nil {
		return nil, err
	}
	return dynamic.NewForConfig(config)
}
