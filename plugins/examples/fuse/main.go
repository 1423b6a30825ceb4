// The plugin fuse is a storage plugin: volumes whose files are objects of an S3-compatible store, or files of a
// directory. docs/older-ways.md describes it ("FUSE volumes"), package driver how it works.
//
// The same program is the client that serves a volume, and writes its own image:
//
//	fuse                          the plugin, started by Kubelith
//	fuse client DIRECTORY CONFIG  a client, started by the plugin, or in a pod
//	fuse sidecar RUN DIRECTORY    a client in a pod with volumes of the mode sidecar
//	fuse ready DIRECTORY          whether the sidecar serves them
//	fuse image FILE               writes an OCI archive with this program, for client pods
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/plugins/examples/fuse/client"
	"kubelith.io/kubelith/plugins/examples/fuse/driver"
	"kubelith.io/kubelith/plugins/sdk"
	"kubelith.io/kubelith/plugins/sdk/cluster"
)

func main() {
	if len(os.Args) < 2 {
		serve()
		return
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "fuse:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case args[0] == "client" && len(args) == 3:
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		debug.SetMemoryLimit(64 << 20) // many clients may run on a node
		return client.Run(ctx, args[1], args[2], log)
	case args[0] == "sidecar" && len(args) == 3:
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		debug.SetMemoryLimit(64 << 20)
		return client.RunSidecar(ctx, args[1], args[2], log)
	case args[0] == "ready" && len(args) == 2:
		return client.Ready(args[1])
	case args[0] == "image" && len(args) == 2:
		return writeImage(args[1])
	}
	return errors.New("usage: fuse client DIRECTORY CONFIG, fuse sidecar RUN DIRECTORY, fuse ready DIRECTORY, or fuse image FILE")
}

func log(message string) {
	fmt.Fprintln(os.Stderr, time.Now().UTC().Format(time.RFC3339), message)
}

// serve is the plugin.
func serve() {
	d := driver.New()
	sdk.ServeStorage(sdk.Storage{
		Version:    driver.Version,
		CSIDriver:  driver.CSIDriver(),
		Identity:   d,
		Controller: d,
		Node:       d,
		Configure: func(c sdk.Config) error {
			o := driver.Options{Name: c.NodeName, Dir: c.DataDir, Log: c.Log}
			if err := c.Decode(&o.Config); err != nil {
				return err
			}
			if config, err := cluster.Config(); err == nil { // not on an agent: the server creates its client pods
				if o.Pods, err = kubernetes.NewForConfig(config); err != nil {
					return err
				}
			}
			return d.Open(o)
		},
	})
}
