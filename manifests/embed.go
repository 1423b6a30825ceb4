// Package manifests has the objects that every cluster has from the start and that no component needs: the directory
// cluster, embedded into the executable and applied by components/cluster/manifests. What is beside it are examples.
package manifests

import (
	"embed"
	"io/fs"
)

//go:embed cluster
var files embed.FS

// Cluster returns the embedded files.
func Cluster() fs.FS {
	sub, err := fs.Sub(files, "cluster")
	if err != nil {
		panic(err) // only for a name that is none
	}
	return sub
}
