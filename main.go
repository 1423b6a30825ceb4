// Kubelith is a whole Kubernetes cluster in one executable.
//
// main parses the command line, runs the command, prints an error and exits: the only os.Exit of the project is here.
// cmd/kubelith has the commands, components/node the composition of a server.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"kubelith.io/kubelith/base/oneline"
	"kubelith.io/kubelith/cmd/kubelith"
	"kubelith.io/kubelith/components/node/startup"
)

func main() {
	startup.Done()
	// Under the name kubectl the executable is kubectl.
	if filepath.Base(os.Args[0]) == "kubectl" {
		exit(kubelith.Kubectl(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	// kubectl and ctr parse their own flags, and do not need ours first.
	if len(os.Args) > 1 && os.Args[1] == "kubectl" {
		exit(kubelith.Kubectl(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := kubelith.App(os.Stdin, os.Stdout, os.Stderr).RunContext(ctx, os.Args)
	stop()
	exit(err)
}

// exit prints err as one line per problem and ends the process.
func exit(err error) {
	if err == nil {
		os.Exit(0)
	}
	var code interface{ ExitCode() int }
	status := 1
	if errors.As(err, &code) {
		status = code.ExitCode()
	}
	say(err)
	os.Exit(status)
}

// unread is how long an error waits for a reader. A service that has ended must exit in time to be restarted.
const unread = time.Minute

// say prints err on standard error.
func say(err error) {
	said := make(chan struct{})
	go func() {
		defer close(said)
		if text := strings.TrimSpace(err.Error()); text != "" {
			for _, line := range strings.Split(text, "\n") {
				fmt.Fprintln(os.Stderr, "kubelith: "+oneline.Escape(line))
			}
		}
	}()
	select {
	case <-said:
	case <-time.After(unread):
	}
}
