package store

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	// patience is how long a request is retried when no process serves the socket: the plugin is being replaced.
	patience = 25 * time.Second
	tryEvery = 200 * time.Millisecond
	// connections at a time. Handler's server has more.
	connections = 8
)

// remote is a store behind a socket.
type remote struct {
	client *http.Client
	volume string
}

// Remote returns the store of a volume that a Handler serves.
func Remote(volume string, dial func(context.Context) (net.Conn, error)) Store {
	return &remote{volume: volume, client: &http.Client{Transport: &http.Transport{
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections, IdleConnTimeout: time.Minute,
		ExpectContinueTimeout: time.Minute, // the answer can be that the volume is full
	}}}
}

// do sends a request, and returns an error for one that is not 200.
func (s *remote) do(ctx context.Context, op, key string, args url.Values, content io.Reader, size int64) (io.ReadCloser, error) {
	if args == nil {
		args = url.Values{}
	}
	args.Set(argVolume, s.volume)
	args.Set(argKey, key)
	for begin := time.Now(); ; {
		body, err := s.once(ctx, op+"?"+args.Encode(), content, size)
		var f *failure
		if err == nil || errors.As(err, &f) || ctx.Err() != nil {
			return body, err
		}
		again, seekable := content.(io.Seeker)
		if time.Since(begin) > patience || content != nil && !seekable {
			return nil, fmt.Errorf("the plugin fuse does not serve the volume: %w", err)
		}
		if content != nil {
			if _, err := again.Seek(0, io.SeekStart); err != nil {
				return nil, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the plugin fuse does not serve the volume: %w", err)
		case <-time.After(tryEvery):
		}
	}
}

func (s *remote) once(ctx context.Context, target string, content io.Reader, size int64) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://plugin"+target, nil)
	if err != nil {
		return nil, err
	}
	if size > 0 {
		r.Body, r.ContentLength = io.NopCloser(io.LimitReader(content, size)), size
		r.Header.Set("Expect", "100-continue")
	}
	a, err := s.client.Do(r)
	if err != nil {
		return nil, err
	}
	if a.StatusCode == http.StatusOK {
		return a.Body, nil
	}
	defer a.Body.Close()
	f := &failure{}
	if err := json.NewDecoder(io.LimitReader(a.Body, 64<<10)).Decode(f); err != nil {
		return nil, fmt.Errorf("%s: %w", a.Status, err)
	}
	return nil, f
}

// info sends a request whose answer is an object.
func (s *remote) info(ctx context.Context, op, key string, args url.Values, content io.Reader, size int64) (i Info, err error) {
	body, err := s.do(ctx, op, key, args, content, size)
	if err != nil {
		return Info{}, err
	}
	defer body.Close()
	err = json.NewDecoder(body).Decode(&i)
	i.Key = cmp.Or(args.Get(argTo), key)
	return i, err
}

// none sends a request whose answer is empty.
func (s *remote) none(ctx context.Context, op, key string) error {
	body, err := s.do(ctx, op, key, nil, nil, 0)
	if err != nil {
		return err
	}
	return body.Close()
}

// Check implements Store.
func (s *remote) Check(ctx context.Context) error { return s.none(ctx, opCheck, "") }

// Stat implements Store.
func (s *remote) Stat(ctx context.Context, key string) (Info, error) {
	return s.info(ctx, opStat, key, nil, nil, 0)
}

// List implements Store.
func (s *remote) List(ctx context.Context, dir string, recursive bool, f func(Info) error) error {
	args := url.Values{}
	if recursive {
		args.Set(argRec, "true")
	}
	body, err := s.do(ctx, opList, dir, args, nil, 0)
	if err != nil {
		return err
	}
	defer body.Close()
	in := json.NewDecoder(bufio.NewReader(body))
	for {
		var l listed
		switch err := in.Decode(&l); {
		case err != nil:
			return fmt.Errorf("list %q: %w", dir, err)
		case l.Failure != nil:
			return l.Failure
		case l.Info == nil:
			return nil
		}
		l.Info.Key = string(l.Key)
		if err := f(*l.Info); err != nil {
			return err
		}
	}
}

// Read implements Store.
func (s *remote) Read(ctx context.Context, key, tag string, offset int64, p []byte) error {
	body, err := s.do(ctx, opRead, key, url.Values{argTag: {tag}, argOffset: {strconv.FormatInt(offset, 10)}, argLength: {strconv.Itoa(len(p))}}, nil, 0)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.ReadFull(body, p)
	return err
}

// Put implements Store.
func (s *remote) Put(ctx context.Context, key string, content io.Reader, size int64, meta Meta) (Info, error) {
	return s.info(ctx, opPut, key, metaArg(meta), content, size)
}

// Copy implements Store.
func (s *remote) Copy(ctx context.Context, from, to string, meta Meta) (Info, error) {
	args := metaArg(meta)
	args.Set(argTo, to)
	return s.info(ctx, opCopy, from, args, nil, 0)
}

// Delete implements Store.
func (s *remote) Delete(ctx context.Context, key string) error { return s.none(ctx, opDelete, key) }

func metaArg(m Meta) url.Values {
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // numbers and a time
	}
	return url.Values{argMeta: {string(text)}}
}
