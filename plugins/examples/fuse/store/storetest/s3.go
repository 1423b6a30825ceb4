// Package storetest is an S3-compatible store in memory, for tests: one bucket, what volumes need of the API, and
// faults on request. It accepts every signature.
package storetest

import (
	"bufio"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Bucket is the name of the only bucket.
const Bucket = "data"

// Server is the store. The zero value is empty and works.
type Server struct {
	mu       sync.Mutex
	objects  map[string]*object
	uploads  map[string]*upload
	capacity int64
	away     bool
	requests int
}

type object struct {
	content []byte
	header  http.Header // x-amz-meta-*
	tag     string
	time    time.Time
}

// upload in parts.
type upload struct {
	header http.Header
	parts  map[int][]byte
}

// Away makes every request fail, until it is called with false.
func (s *Server) Away(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

// Limit makes the store full at that many bytes; 0: never.
func (s *Server) Limit(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.capacity = bytes
}

// Get returns the content of an object.
func (s *Server) Get(key string) (content string, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[key]
	if o == nil {
		return "", false
	}
	return string(o.content), true
}

// Set writes an object as another program would.
func (s *Server) Set(key, content string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(key, []byte(content), nil)
}

// Keys returns the keys of all objects that start with a prefix, in order.
func (s *Server) Keys(prefix string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys(prefix)
}

// Requests returns how many requests there were.
func (s *Server) Requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

func (s *Server) keys(prefix string) (keys []string) {
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	return keys
}

func (s *Server) put(key string, content []byte, header http.Header) *object {
	if s.objects == nil {
		s.objects = map[string]*object{}
	}
	sum := md5.Sum(content)
	o := &object{content: content, header: http.Header{}, tag: hex.EncodeToString(sum[:]), time: time.Now()}
	for name, values := range header {
		if strings.HasPrefix(name, "X-Amz-Meta-") {
			o.header[name] = values
		}
	}
	s.objects[key] = o
	return o
}

// full reports whether so much more does not fit.
func (s *Server) full(more int) bool {
	sum := int64(more)
	for _, o := range s.objects {
		sum += int64(len(o.content))
	}
	return s.capacity > 0 && sum > s.capacity
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	body, err := bodyOf(r) // before the lock: a client may be slow
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	query := r.URL.Query()
	switch {
	case s.away:
		fail(w, r, http.StatusForbidden, "AccountProblem", "the store is away for a test")
	case err != nil:
		fail(w, r, http.StatusBadRequest, "IncompleteBody", err.Error())
	case bucket != Bucket:
		fail(w, r, http.StatusNotFound, "NoSuchBucket", "there is no bucket "+bucket)
	case query.Has("location"):
		answer(w, struct {
			XMLName xml.Name `xml:"LocationConstraint"`
		}{})
	case key == "" && r.Method == http.MethodHead:
	case key == "" && r.Method == http.MethodGet:
		s.list(w, query)
	case r.Method == http.MethodPost && query.Has("uploads"), query.Has("uploadId"):
		s.parts(w, r, key, body)
	case r.Method == http.MethodPut:
		s.write(w, r, key, body)
	case r.Method == http.MethodDelete:
		delete(s.objects, key)
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		s.read(w, r, key)
	default:
		fail(w, r, http.StatusNotImplemented, "NotImplemented", r.Method+" "+r.URL.String())
	}
}

func (s *Server) write(w http.ResponseWriter, r *http.Request, key string, body []byte) {
	source := r.Header.Get("X-Amz-Copy-Source")
	if source != "" {
		from, err := url.PathUnescape(strings.TrimPrefix(source, "/"))
		o := s.objects[strings.TrimPrefix(from, Bucket+"/")]
		if err != nil || o == nil {
			fail(w, r, http.StatusNotFound, "NoSuchKey", "there is no object "+from)
			return
		}
		body = o.content
	}
	if s.full(len(body)) {
		fail(w, r, http.StatusInsufficientStorage, "XMinioStorageFull", "the store is full")
		return
	}
	o := s.put(key, body, r.Header)
	if source != "" {
		answer(w, struct {
			XMLName      xml.Name `xml:"CopyObjectResult"`
			ETag         string
			LastModified string
		}{ETag: o.tag, LastModified: o.time.UTC().Format(time.RFC3339)})
		return
	}
	w.Header().Set("ETag", `"`+o.tag+`"`)
}

func (s *Server) read(w http.ResponseWriter, r *http.Request, key string) {
	o := s.objects[key]
	if o == nil {
		fail(w, r, http.StatusNotFound, "NoSuchKey", "there is no object "+key)
		return
	}
	if match := strings.Trim(r.Header.Get("If-Match"), `"`); match != "" && match != o.tag {
		fail(w, r, http.StatusPreconditionFailed, "PreconditionFailed", "it has another tag")
		return
	}
	for name, values := range o.header {
		w.Header()[name] = values
	}
	w.Header().Set("ETag", `"`+o.tag+`"`)
	w.Header().Set("Last-Modified", o.time.UTC().Format(http.TimeFormat))
	content, status := o.content, http.StatusOK
	if r.Header.Get("Range") != "" {
		var from, to int
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); err != nil || from >= len(content) {
			fail(w, r, http.StatusRequestedRangeNotSatisfiable, "InvalidRange", r.Header.Get("Range"))
			return
		}
		to = min(to, len(content)-1)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(content)))
		content, status = content[from:to+1], http.StatusPartialContent
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	w.WriteHeader(status)
	if r.Method == http.MethodGet {
		w.Write(content)
	}
}

// list answers ListObjectsV2.
func (s *Server) list(w http.ResponseWriter, query url.Values) {
	type content struct {
		Key, LastModified, ETag string
		Size                    int
	}
	type prefix struct{ Prefix string }
	result := struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		Name, Prefix          string
		KeyCount, MaxKeys     int
		IsTruncated           bool
		NextContinuationToken string `xml:",omitempty"`
		Contents              []content
		CommonPrefixes        []prefix
	}{Name: Bucket, Prefix: query.Get("prefix"), MaxKeys: 1000}
	if n, err := strconv.Atoi(query.Get("max-keys")); err == nil && n > 0 {
		result.MaxKeys = min(n, result.MaxKeys)
	}
	after, last := query.Get("continuation-token"), ""
	for _, key := range s.keys(result.Prefix) {
		shown := key
		if d := query.Get("delimiter"); d != "" {
			if before, _, found := strings.Cut(key[len(result.Prefix):], d); found {
				shown = result.Prefix + before + d
			}
		}
		if shown <= after || shown == last {
			continue
		}
		if result.KeyCount == result.MaxKeys {
			result.IsTruncated, result.NextContinuationToken = true, last
			break
		}
		result.KeyCount++
		last = shown
		if shown != key || strings.HasSuffix(key, "/") && query.Get("delimiter") != "" && key != result.Prefix {
			result.CommonPrefixes = append(result.CommonPrefixes, prefix{shown})
			continue
		}
		o := s.objects[key]
		result.Contents = append(result.Contents, content{key, o.time.UTC().Format(time.RFC3339Nano), o.tag, len(o.content)})
	}
	answer(w, result)
}

// parts answers uploads in parts.
func (s *Server) parts(w http.ResponseWriter, r *http.Request, key string, body []byte) {
	query := r.URL.Query()
	id := query.Get("uploadId")
	if query.Has("uploads") {
		if s.uploads == nil {
			s.uploads = map[string]*upload{}
		}
		id = strconv.Itoa(s.requests) // unique
		s.uploads[id] = &upload{r.Header, map[int][]byte{}}
		answer(w, struct {
			XMLName               xml.Name `xml:"InitiateMultipartUploadResult"`
			Bucket, Key, UploadId string
		}{Bucket: Bucket, Key: key, UploadId: id})
		return
	}
	u := s.uploads[id]
	if u == nil {
		fail(w, r, http.StatusNotFound, "NoSuchUpload", "there is no upload "+id)
		return
	}
	switch r.Method {
	case http.MethodPut:
		n, _ := strconv.Atoi(query.Get("partNumber"))
		u.parts[n] = body
		sum := md5.Sum(body)
		w.Header().Set("ETag", `"`+hex.EncodeToString(sum[:])+`"`)
	case http.MethodPost:
		var all []byte
		for _, n := range slices.Sorted(maps.Keys(u.parts)) {
			all = append(all, u.parts[n]...)
		}
		delete(s.uploads, id)
		o := s.put(key, all, u.header)
		answer(w, struct {
			XMLName           xml.Name `xml:"CompleteMultipartUploadResult"`
			Bucket, Key, ETag string
		}{Bucket: Bucket, Key: key, ETag: o.tag})
	default:
		delete(s.uploads, id)
		w.WriteHeader(http.StatusNoContent)
	}
}

// bodyOf a request, without the signatures of its chunks.
func bodyOf(r *http.Request) ([]byte, error) {
	if !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		return io.ReadAll(r.Body)
	}
	var out []byte
	for in := bufio.NewReader(r.Body); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		size, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		n, err := strconv.ParseInt(size, 16, 32)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			_, err := io.Copy(io.Discard, in)
			return out, err
		}
		chunk := make([]byte, n)
		if _, err := io.ReadFull(in, chunk); err != nil {
			return nil, err
		}
		out = append(out, chunk...)
		if end, err := in.ReadString('\n'); err != nil || end != "\r\n" {
			return nil, errors.New("a chunk does not end")
		}
	}
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/xml")
	io.WriteString(w, xml.Header)
	xml.NewEncoder(w).Encode(v)
}

func fail(w http.ResponseWriter, r *http.Request, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		xml.NewEncoder(w).Encode(struct {
			XMLName       xml.Name `xml:"Error"`
			Code, Message string
		}{Code: code, Message: message})
	}
}
