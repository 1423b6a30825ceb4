// Command robustness checks a cluster's etcd with the model and the validators of etcd's own robustness tests, while
// the servers go on with their work and something else breaks them.
//
//	robustness SOCKET=DIRECTORY...
//
// Each argument is one member: the unix socket for its clients, and its data directory. Clients of etcd's tests write
// to the members until standard input ends, and watches record what each member says of it. Then the members must all
// answer. The last line on standard output counts what was checked; a fault is on standard error, and the exit code is
// 1.
//
// etcd's validators need an etcd that nobody else writes to, and the one in a server has the API server's clients. What
// they are given is therefore a projection: only the keys of this program, with their revisions renumbered (see
// projection). Source: go.etcd.io/etcd/tests/v3/robustness.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/tests/v3/robustness/validate"
	"go.uber.org/zap"
)

// linearizable bounds the search for an order of all operations.
const linearizable = 5 * time.Minute

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "robustness:", err)
		os.Exit(1)
	}
}

// member is a member of the cluster.
type member struct{ socket, directory string }

func run(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	var members []member
	for _, arg := range args {
		socket, directory, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q: want SOCKET=DIRECTORY", arg)
		}
		members = append(members, member{socket, directory})
	}
	if len(members) == 0 {
		return fmt.Errorf("usage: robustness SOCKET=DIRECTORY...")
	}
	lg, err := zap.NewDevelopment(zap.IncreaseLevel(zap.WarnLevel))
	if err != nil {
		return err
	}
	// Another one each time: nothing has ever been written there.
	r, err := newRecorder(ctx, fmt.Sprintf("/robustness-%d/", time.Now().UnixNano()), members, requestsPerSecond)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, "recording")
	if _, err := io.Copy(io.Discard, stdin); err != nil {
		return err
	}
	if err := r.stop(ctx); err != nil {
		return err
	}
	h, err := r.history(members)
	if err != nil {
		return err
	}
	result := validate.ValidateAndReturnVisualize(lg, validate.Config{}, h.reports, h.persisted, linearizable)
	if err := result.Error(); err != nil {
		return fmt.Errorf("%w (%s)", err, h)
	}
	fmt.Fprintln(stdout, h)
	return nil
}
