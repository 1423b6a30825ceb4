package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/sealed"
)

const (
	// upgradeTimeout bounds the transfer of a program from one server.
	upgradeTimeout = 10 * time.Minute
	// askFor is how long the servers are tried: one that is busy leaves the addresses of the API for some seconds.
	askFor, askEvery = 2 * time.Minute, 5 * time.Second
)

// fetchProgram writes the program with a checksum, from another server that has it.
func (p *plane) fetchProgram(ctx context.Context, sum string, to io.Writer) error {
	var last error
	_ = wait.PollUntilContextTimeout(ctx, askEvery, askFor, true, func(context.Context) (bool, error) { // last: the reason
		var begun bool
		begun, last = p.fetchOnce(ctx, sum, to)
		return begun || last == nil, nil
	})
	return last
}

// fetchOnce tries each server once. begun means that a part may be written, which another try cannot repair.
func (p *plane) fetchOnce(ctx context.Context, sum string, to io.Writer) (begun bool, err error) {
	cs, err := kubernetes.NewForConfig(p.clients.Config(client.Servers))
	if err != nil {
		return false, err
	}
	var written error
	asked := sealed.AskServers(ctx, cs, p.identity, upgradeTimeout, func(from *http.Client, address string) error {
		body, err := program(ctx, from, address, sum)
		if err != nil {
			return err
		}
		begun = true
		_, err = io.Copy(to, body)
		written = errors.Join(err, body.Close())
		return nil
	})
	return begun, errors.Join(asked, written)
}

// program requests it from the server at an address.
func program(ctx context.Context, from *http.Client, address, sum string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+names.UpgradesPath+sum, nil)
	if err != nil {
		return nil, err
	}
	answer, err := from.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		return nil, fmt.Errorf("%s: %s", address, answer.Status)
	}
	return answer.Body, nil
}
