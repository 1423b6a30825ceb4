// Package cluster connects a plugin that reads the cluster. It is a package of its own so that others do not link client-go.
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

// Config leads to the apiserver, as the user that the host has made for this plugin. On agents there is none.
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

// Dynamic is a client for objects of any kind.
func Dynamic() (dynamic.Interface, error) {
	config, err := Config()
	if err != nil {
		return nil, err
	}
	return dynamic.NewForConfig(config)
}
