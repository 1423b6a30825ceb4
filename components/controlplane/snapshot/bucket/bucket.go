// Package bucket keeps files in a folder of a bucket of an S3-compatible store: it is where the component "snapshots"
// copies what it has saved and verified. It knows nothing of snapshots. The client is minio-go.
package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"kubelith.io/kubelith/base/oneline"
)

// Options are the location of the bucket and the credentials for it.
type Options struct {
	// Endpoint is HOST[:PORT], Folder empty or names with a slash between them.
	Endpoint, Bucket, Folder, Region string
	// CredentialsFile is a file as the AWS CLI writes it. AccessKey and SecretKey take precedence.
	CredentialsFile                    string
	AccessKey, SecretKey, SessionToken string
	// CAFile has the CA of the store's certificate; empty: the machine's.
	CAFile string
	// SkipTLSVerify accepts any certificate, Insecure is HTTP without TLS.
	SkipTLSVerify, Insecure bool
	// Lookup is where requests name the bucket: path, dns or auto.
	Lookup string
	// Timeout is how long a request may make no progress.
	Timeout time.Duration
}

// Bucket is the folder.
type Bucket struct {
	client    *minio.Client
	transport *http.Transport
	name      string
	prefix    string // empty, or with a slash at its end
	endpoint  string
}

// Object is a file in the bucket.
type Object struct {
	Name  string
	Bytes int64
}

// tries is how often a request is sent before it fails.
const tries = 3

// Open reads the files that the options name. It does not connect.
func Open(o Options) (*Bucket, error) {
	keys, err := o.credentials()
	if err != nil {
		return nil, err
	}
	transport, err := o.transport()
	if err != nil {
		return nil, err
	}
	lookup := map[string]minio.BucketLookupType{"dns": minio.BucketLookupDNS, "path": minio.BucketLookupPath}[o.Lookup]
	client, err := minio.New(o.Endpoint, &minio.Options{
		Creds: keys, Secure: !o.Insecure, Region: o.Region, BucketLookup: lookup, MaxRetries: tries, Transport: transport,
	})
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", o.Endpoint, err)
	}
	b := &Bucket{client: client, transport: transport, name: o.Bucket, endpoint: o.Endpoint}
	if folder := strings.Trim(o.Folder, "/"); folder != "" {
		b.prefix = folder + "/"
	}
	return b, nil
}

// Close ends the connections that wait for the next request.
func (b *Bucket) Close() { b.transport.CloseIdleConnections() }

// URL is that of a file, for users.
func (b *Bucket) URL(name string) string { return "s3://" + b.name + "/" + b.prefix + name }

// List returns the files whose names end with a suffix.
func (b *Bucket) List(ctx context.Context, suffix string) ([]Object, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all []Object
	for o := range b.client.ListObjects(ctx, b.name, minio.ListObjectsOptions{Prefix: b.prefix}) {
		if o.Err != nil {
			return nil, b.explain(o.Err)
		}
		if name := strings.TrimPrefix(o.Key, b.prefix); strings.HasSuffix(name, suffix) {
			all = append(all, Object{Name: name, Bytes: o.Size})
		}
	}
	return all, nil
}

// Put writes a file. It exists when Put has returned, with this content: the store compares checksums. progress, if it
// is not nil, gets the number of bytes that were sent.
func (b *Bucket) Put(ctx context.Context, name string, content io.ReaderAt, size int64, progress func(done int64)) error {
	_, err := b.client.PutObject(ctx, b.name, b.prefix+name, io.NewSectionReader(content, 0, size), size, minio.PutObjectOptions{
		ContentType: "application/octet-stream", SendContentMd5: true, Progress: &meter{report: progress},
	})
	return b.explain(err)
}

// Get reads a file. A read fails with fs.ErrNotExist if there is none. limit bounds the bytes; 0: all.
func (b *Bucket) Get(ctx context.Context, name string, limit int64) (io.ReadCloser, error) {
	var o minio.GetObjectOptions
	if limit > 0 {
		if err := o.SetRange(0, limit-1); err != nil {
			return nil, err
		}
	}
	object, err := b.client.GetObject(ctx, b.name, b.prefix+name, o)
	if err != nil {
		return nil, b.explain(err)
	}
	return &content{object, b}, nil
}

// Size is that of a file, in bytes.
func (b *Bucket) Size(ctx context.Context, name string) (int64, error) {
	o, err := b.client.StatObject(ctx, b.name, b.prefix+name, minio.StatObjectOptions{})
	return o.Size, b.explain(err)
}

// Delete deletes a file. It is no error if there is none.
func (b *Bucket) Delete(ctx context.Context, name string) error {
	err := b.explain(b.client.RemoveObject(ctx, b.name, b.prefix+name, minio.RemoveObjectOptions{}))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// explain returns an error, of one line, that names the store. fs.ErrNotExist is of a file.
func (b *Bucket) explain(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	r := minio.ToErrorResponse(err)
	switch {
	case r.Code == minio.NoSuchBucket:
		return fmt.Errorf("store %s has no bucket %s: create it", b.endpoint, b.name)
	case r.Code == minio.NoSuchKey || r.StatusCode == http.StatusNotFound:
		return fmt.Errorf("store %s: %s: %w", b.endpoint, b.URL(""), fs.ErrNotExist)
	case r.Code == "SignatureDoesNotMatch" || r.Code == "InvalidAccessKeyId" || r.Code == "InvalidToken" || r.Code == "ExpiredToken":
		return fmt.Errorf("store %s refuses the keys of the account (%s): check them, and the clock of this machine", b.endpoint, r.Code)
	case r.Code == minio.AccessDenied || r.StatusCode == http.StatusForbidden:
		return fmt.Errorf("store %s denies access to bucket %s (%s): "+
			"check the keys, and that the account may list it, and read, write and delete in it",
			b.endpoint, b.name, strings.TrimSuffix(oneline.Of(err.Error()), "."))
	}
	var timed net.Error
	if errors.As(err, &timed) && timed.Timeout() {
		return fmt.Errorf("store %s does not answer", b.endpoint)
	}
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err // without the URL, which repeats the rest
	}
	return fmt.Errorf("store %s, bucket %s: %s", b.endpoint, b.name, oneline.Of(err.Error()))
}

// content explains errors.
type content struct {
	*minio.Object
	b *Bucket
}

// Read implements io.Reader.
func (c *content) Read(p []byte) (int, error) {
	n, err := c.Object.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = c.b.explain(err)
	}
	return n, err
}

// meter counts what is sent. minio-go reads from it as many bytes as it has sent.
type meter struct {
	done   int64
	report func(int64)
}

// Read implements io.Reader.
func (m *meter) Read(p []byte) (int, error) {
	m.done += int64(len(p))
	if m.report != nil {
		m.report(m.done)
	}
	return len(p), nil
}
