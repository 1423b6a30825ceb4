// Package buckettest runs an S3-compatible store for tests: gofakes3, the one behind `rclone serve s3`, which checks
// the signature of each request, in memory, with faults on request.
package buckettest

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/rclone/gofakes3"
	"github.com/rclone/gofakes3/s3mem"
)

// The account and the bucket of every Server. gofakes3 keeps accounts for the whole process.
const (
	Bucket    = "backups"
	AccessKey = "AKIATEST"
	SecretKey = "7h1s-1s-s3cret"
)

// Server is the store. Serve it with net/http.
type Server struct {
	backend  *s3mem.Backend
	s3       http.Handler
	away     atomic.Bool
	limit    atomic.Int64
	requests atomic.Int64
}

// New returns a store with an empty bucket.
func New() (*Server, error) {
	s := &Server{backend: s3mem.New()}
	s.s3 = gofakes3.New(s.backend, gofakes3.WithV4Auth(map[string]string{AccessKey: SecretKey}), gofakes3.WithoutVersioning()).Server()
	return s, s.backend.CreateBucket(context.Background(), Bucket)
}

// Away breaks every connection, until it is called with false.
func (s *Server) Away(away bool) { s.away.Store(away) }

// Break ends each answer with an object after that many bytes; 0: never.
func (s *Server) Break(bytes int64) { s.limit.Store(bytes) }

// Requests returns how many there were.
func (s *Server) Requests() int64 { return s.requests.Load() }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	if s.away.Load() {
		panic(http.ErrAbortHandler)
	}
	if limit := s.limit.Load(); limit > 0 && r.Method == http.MethodGet {
		w = &cut{w, limit}
	}
	s.s3.ServeHTTP(w, r)
}

// cut breaks the connection after some bytes.
type cut struct {
	http.ResponseWriter
	left int64
}

// Write implements http.ResponseWriter.
func (c *cut) Write(p []byte) (int, error) {
	if int64(len(p)) > c.left {
		c.ResponseWriter.Write(p[:c.left])
		http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	c.left -= int64(len(p))
	return c.ResponseWriter.Write(p)
}

// Keys returns those of all objects, in order.
func (s *Server) Keys() ([]string, error) {
	objects, err := s.backend.ListBucket(context.Background(), Bucket, nil, gofakes3.ListBucketPage{})
	if err != nil {
		return nil, err
	}
	var keys []string
	for _, o := range objects.Contents {
		keys = append(keys, o.Key)
	}
	slices.Sort(keys)
	return keys, nil
}
