package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// notices is the socket on which a server reports the progress of its start, as to systemd (sd_notify(3)).
type notices struct {
	*net.UnixConn
	path string
}

func listenNotices(path string) (*notices, error) {
	os.Remove(path) // of an earlier launch
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	return &notices{conn, path}, nil
}

// allReady is the status of a server that has started all of its components (components/node/progress).
const allReady = "all components are ready"

// wait returns when all components are ready.
func (n *notices) wait(deadline time.Time, server *process) error {
	status := "nothing has started"
	buffer := make([]byte, 4096)
	for status != allReady {
		if !server.running() {
			server.stopped = true // what follows reports it
			return fmt.Errorf("the server ended (%s): %s", server.cmd.ProcessState, lastLines(server.log, 1))
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the cluster is not ready within Options.StartTimeout: %s", status)
		}
		n.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) // to see whether the server has ended
		size, err := n.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return fmt.Errorf("the server's notices: %w", err)
		}
		status = statusOf(string(buffer[:size]), status)
	}
	return nil
}

// statusOf returns the status in a notice, or the one before.
func statusOf(notice, before string) string {
	for line := range strings.SplitSeq(notice, "\n") {
		if status, ok := strings.CutPrefix(line, "STATUS="); ok {
			before = status
		}
	}
	return before
}

// usable waits until pods can be created, and with a node until they can be scheduled to it.
func (c *Cluster) usable(deadline time.Time) error {
	client, err := rest.HTTPClientFor(c.config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	get := func(path string, into any) error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return getJSON(ctx, client, c.config.Host+path, into)
	}
	var ready []func() error
	// Without its ServiceAccount no pod is admitted to a namespace.
	if !slices.Contains(values(c.opts.Args, "disable"), "controller-manager") {
		ready = append(ready, func() error { return get("/api/v1/namespaces/default/serviceaccounts/default", nil) })
	}
	if c.opts.Node {
		ready = append(ready, func() error {
			var nodes nodeList
			return errors.Join(get("/api/v1/nodes", &nodes), nodes.ready())
		})
	}
	for _, check := range ready {
		for err := check(); err != nil; err = check() {
			if !c.server.running() || time.Now().After(deadline) {
				return fmt.Errorf("the cluster cannot be used within Options.StartTimeout: %w", err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return nil
}

// nodeList is what is needed of a corev1.NodeList, whose package is large.
type nodeList struct {
	Items []struct {
		Spec struct {
			Taints []struct{ Key string }
		}
		Status struct {
			Conditions []struct{ Type, Status, Message string }
		}
	}
}

// ready requires what the scheduler requires: the condition Ready, and no taint that comes with a node that is not.
func (l nodeList) ready() error {
	for _, node := range l.Items {
		for _, c := range node.Status.Conditions {
			if c.Type == "Ready" && c.Status != "True" {
				return fmt.Errorf("the node is not Ready: %s", c.Message)
			}
		}
		for _, taint := range node.Spec.Taints {
			if taint.Key == "node.kubernetes.io/not-ready" {
				return fmt.Errorf("the node has the taint %s", taint.Key)
			}
		}
		if len(node.Status.Conditions) > 0 {
			return nil
		}
	}
	return errors.New("there is no node yet")
}

// getJSON requests a URL and decodes the answer into a variable, or drops it if that is nil.
func getJSON(ctx context.Context, client *http.Client, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
