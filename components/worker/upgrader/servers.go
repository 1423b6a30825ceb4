package upgrader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/sealed"
)

const (
	// transferTimeout bounds the transfer of a program from one server.
	transferTimeout = 10 * time.Minute
	// askServersFor is how long the servers are tried: one that is busy leaves the addresses of the API for some
	// seconds.
	askServersFor, askServersEvery = 2 * time.Minute, 5 * time.Second
)

// FromServers returns Options.Fetch of a server: it writes the program with a checksum from another server that has it.
// client lists the servers, and identity is how this server calls them.
func FromServers(client *rest.Config, identity sealed.Identity) func(ctx context.Context, sum string, to io.Writer) error {
	return func(ctx context.Context, sum string, to io.Writer) error {
		var last error // the reason
		_ = wait.PollUntilContextTimeout(ctx, askServersEvery, askServersFor, true, func(context.Context) (bool, error) {
			var begun bool
			begun, last = fetchOnce(ctx, client, identity, sum, to)
			return begun || last == nil, nil
		})
		return last
	}
}

// fetchOnce tries each server once. begun means that a part may be written, which another try cannot repair.
func fetchOnce(ctx context.Context, client *rest.Config, identity sealed.Identity, sum string, to io.Writer) (begun bool, err error) {
	cs, err := kubernetes.NewForConfig(client)
	if err != nil {
		return false, err
	}
	var written error
	asked := sealed.AskServers(ctx, cs, identity, transferTimeout, func(from *http.Client, address string) error {
		body, err := requestProgram(ctx, from, address, sum)
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

// requestProgram requests it from the server at an address.
func requestProgram(ctx context.Context, from *http.Client, address, sum string) (io.ReadCloser, error) {
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
