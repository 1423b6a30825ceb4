package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/record"
)

// ErrNoRecorder: the server is not Kubelith, or one without a recorder.
var ErrNoRecorder = errors.New("this server has no recorder")

// Client reads timelines from a server, with the rights of its configuration.
type Client struct{ rest rest.Interface }

// NewClient returns a client; nothing is sent.
func NewClient(c *rest.Config) (*Client, error) {
	d, err := discovery.NewDiscoveryClientForConfig(c)
	if err != nil {
		return nil, err
	}
	return &Client{rest: d.RESTClient()}, nil
}

// Timeline returns the timeline of the newest object of that name; the resource is "pods" or "deployments.apps". With
// after it waits until there is a record after that Seq, for Patience at most. An error of package
// k8s.io/apimachinery/pkg/api/errors says that there is no record (IsNotFound), that the caller may not read the
// object, or that the recorder is off (IsServiceUnavailable).
func (c *Client) Timeline(ctx context.Context, resource, namespace, name string, after uint64) (*trace.Timeline, error) {
	t := &trace.Timeline{}
	return t, c.get(ctx, TracePath, url.Values{"resource": {resource}, "namespace": {namespace}, "name": {name}, "after": {text(after)}}, t)
}

// Recent returns summaries of what users set off, the newest first. With after it waits as Timeline does.
func (c *Client) Recent(ctx context.Context, n int, after uint64) (*Recent, error) {
	r := &Recent{}
	return r, c.get(ctx, RecentPath, url.Values{"n": {strconv.Itoa(n)}, "after": {text(after)}}, r)
}

// Slowest returns the n slowest pod starts and requests.
func (c *Client) Slowest(ctx context.Context, n int) (*Slowest, error) {
	s := &Slowest{}
	return s, c.get(ctx, SlowestPath, url.Values{"n": {strconv.Itoa(n)}}, s)
}

// Stats returns percentiles by stage.
func (c *Client) Stats(ctx context.Context) (*Stats, error) {
	s := &Stats{}
	return s, c.get(ctx, StatsPath, nil, s)
}

// TooLarge is the error for a batch that no server would take: its size in bytes.
type TooLarge int

// Error implements error.
func (t TooLarge) Error() string { return fmt.Sprintf("a batch of %d bytes is too large", int(t)) }

// Send hands over a node's records. A TooLarge has not been sent.
func (c *Client) Send(ctx context.Context, batch *record.Batch) (reply record.Reply, err error) {
	body, err := json.Marshal(batch)
	if err != nil {
		return reply, err
	}
	if len(body) > record.MaxBody {
		return reply, TooLarge(len(body))
	}
	answer, err := result(c.rest.Post().AbsPath(RecordsPath).SetHeader("Content-Type", "application/json").Body(body).Do(ctx))
	if err != nil {
		return reply, err
	}
	return reply, json.Unmarshal(answer, &reply)
}

func text(n uint64) string { return strconv.FormatUint(n, 10) }

func (c *Client) get(ctx context.Context, path string, query url.Values, into any) error {
	req := c.rest.Get().AbsPath(path)
	for key, values := range query {
		req.Param(key, values[0])
	}
	answer, err := result(req.Do(ctx))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("%w: its answer to %s is not a recorder's", ErrNoRecorder, path)
	}
	return nil
}

func result(r rest.Result) ([]byte, error) {
	if err := r.Error(); err != nil {
		return nil, describe(err)
	}
	return r.Raw()
}

// describe finds out whether the path or the object is unknown: a server that knows the path names the object.
func describe(err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Reason == metav1.StatusReasonNotFound {
		if details := status.Status().Details; details == nil || details.Name == "" {
			return fmt.Errorf("%w: it is not Kubelith, or an older version of it", ErrNoRecorder)
		}
	}
	return err
}
