package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/sealed"
	"kubelith.io/kubelith/components/worker/upgrader"
)

// upgradeTimeout bounds the transfer of a program from one server.
const upgradeTimeout = 10 * time.Minute

// fetchProgram writes the program with a checksum, from another server that has it.
func (p *plane) fetchProgram(ctx context.Context, sum string, to io.Writer) error {
	cs, err := kubernetes.NewForConfig(p.clients.Config(client.Servers))
	if err != nil {
		return err
	}
	var written error // which another server cannot mend: a part is there
	asked := sealed.AskServers(ctx, cs, p.identity, upgradeTimeout, func(from *http.Client, address string) error {
		body, err := program(ctx, from, address, sum)
		if err != nil {
			return err
		}
		_, err = io.Copy(to, body)
		written = errors.Join(err, body.Close())
		return nil
	})
	return errors.Join(asked, written)
}

// program asks the server at an address.
func program(ctx context.Context, from *http.Client, address, sum string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+upgrader.Path+sum, nil)
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
