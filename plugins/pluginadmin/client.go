package pluginadmin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/plugins/host"
)

// SocketName is the name of the socket in the run directory.
const SocketName = "plugins.sock"

// Client calls the server that listens on a socket.
type Client struct {
	socket string
	http   http.Client
}

// NewClient returns a client. It does not connect.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &Client{socket, http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: time.Minute}}
}

// List returns all plugins, by kind and name.
func (c *Client) List(ctx context.Context) ([]Plugin, error) {
	body, err := c.do(ctx, http.MethodGet, "/plugins")
	if err != nil {
		return nil, err
	}
	var out []Plugin
	if err := json.Unmarshal(body, &out); err != nil {
		return nil, fmt.Errorf("cannot read the response on %s: use the same version of kubelith as the server: %w", c.socket, err)
	}
	return out, nil
}

// Get returns the plugin with that name.
func (c *Client) Get(ctx context.Context, name string) (Plugin, error) {
	all, err := c.List(ctx)
	if err != nil {
		return Plugin{}, err
	}
	i := slices.IndexFunc(all, func(p Plugin) bool { return p.Name == name && p.Phase != string(host.Draining) })
	if i < 0 {
		return Plugin{}, fmt.Errorf("no plugin has the name %q: kubelith plugin list shows them", name)
	}
	return all[i], nil
}

// Restart replaces the process of a plugin and returns the plugin once the new process is ready. It fails when the
// process fails, or when ctx ends.
func (c *Client) Restart(ctx context.Context, name string) (Plugin, error) {
	before, err := c.Get(ctx, name)
	if err != nil {
		return before, err
	}
	if _, err := c.do(ctx, http.MethodPost, "/plugins/"+url.PathEscape(name)+"/restart"); err != nil {
		return before, err
	}
	for now := before; ; {
		if !reconcile.Sleep(ctx, 50*time.Millisecond) {
			return now, fmt.Errorf("plugin %s is not ready yet (%s): check again with kubelith plugin list", name, now.Phase)
		}
		next, err := c.Get(ctx, name)
		if err != nil {
			if ctx.Err() == nil {
				return now, err
			}
			continue
		}
		now = next
		switch ready := now.Phase == string(host.Ready); {
		case ready && now.Generation != before.Generation:
			return now, nil
		case now.Changes > before.Changes && (ready || now.Phase == string(host.Backoff) || now.Phase == string(host.Failed)):
			return now, fmt.Errorf("plugin %s was not started again: %s", name, now.Message)
		}
	}
}

func (c *Client) do(ctx context.Context, method, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://plugins"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%s belongs to root: run it with sudo", c.socket)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("no server runs with the socket %s: start kubelith server first, or give its --run-dir", c.socket)
	case err != nil:
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(strings.TrimSpace(string(body)))
	}
	return body, nil
}
