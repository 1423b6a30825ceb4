package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// retries is how often a request is sent before it fails: programs wait for the answer.
const retries = 3

// partSize is that of uploads in parts.
const partSize = 64 << 20

// streamPartSize is that of an upload whose content can be read once only: a part of it is in memory.
const streamPartSize = 16 << 20

// The metadata of objects.
const (
	metaMode, metaUID, metaGID, metaTime = "Kubelith-Mode", "Kubelith-Uid", "Kubelith-Gid", "Kubelith-Time"
)

// bucket is a prefix in a bucket.
type bucket struct {
	client   *minio.Client
	name     string
	prefix   string // empty, or with a slash at its end
	endpoint string
}

func openBucket(c Config) (Store, error) {
	host, secure, err := hostOf(c.Endpoint)
	if err != nil {
		return nil, err
	}
	transport, err := minio.DefaultTransport(secure)
	if err != nil {
		return nil, err
	}
	transport.ResponseHeaderTimeout = 30 * time.Second
	client, err := minio.New(host, &minio.Options{
		Creds:        credentials.NewStaticV4(c.AccessKey, c.SecretKey, ""),
		Secure:       secure,
		Region:       c.Region,
		BucketLookup: minio.BucketLookupAuto,
		MaxRetries:   retries,
		Transport:    transport,
	})
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", c.Endpoint, err)
	}
	prefix := strings.Trim(c.Prefix, "/")
	if prefix != "" {
		prefix += "/"
	}
	return &bucket{client: client, name: c.Bucket, prefix: prefix, endpoint: c.Endpoint}, nil
}

// hostOf returns the host of an endpoint, and whether it uses TLS.
func hostOf(endpoint string) (host string, secure bool, err error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" {
		return "", false, fmt.Errorf("the endpoint %q is not a URL of a store: write https://HOST[:PORT]", endpoint)
	}
	return u.Host, u.Scheme == "https", nil
}

// Check implements Store.
func (b *bucket) Check(ctx context.Context) error {
	exists, err := b.client.BucketExists(ctx, b.name)
	if err != nil {
		return b.explain("", err)
	}
	if !exists {
		return fmt.Errorf("store %s has no bucket %s: create it", b.endpoint, b.name)
	}
	return nil
}

// Stat implements Store. A directory exists if it has its own object, or one below it.
func (b *bucket) Stat(ctx context.Context, key string) (Info, error) {
	o, err := b.client.StatObject(ctx, b.name, b.prefix+key, minio.StatObjectOptions{})
	if err == nil {
		return b.info(key, o), nil
	}
	if err = b.explain(key, err); !errors.Is(err, ErrNotExist) || key != "" && !strings.HasSuffix(key, "/") {
		return Info{}, err
	}
	ctx, cancel := context.WithCancel(ctx) // ends the listing
	defer cancel()
	o, found := <-b.client.ListObjects(ctx, b.name, minio.ListObjectsOptions{Prefix: b.prefix + key, MaxKeys: 1, Recursive: true})
	if !found {
		return Info{}, ErrNotExist
	}
	if o.Err != nil {
		return Info{}, b.explain(key, o.Err)
	}
	return Info{Key: key, Meta: Meta{Time: o.LastModified}}, nil
}

// List implements Store.
func (b *bucket) List(ctx context.Context, dir string, recursive bool, f func(Info) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for o := range b.client.ListObjects(ctx, b.name, minio.ListObjectsOptions{Prefix: b.prefix + dir, Recursive: recursive}) {
		if o.Err != nil {
			return b.explain(dir, o.Err)
		}
		key := strings.TrimPrefix(o.Key, b.prefix)
		if key == dir {
			continue // the directory itself
		}
		if err := f(b.info(key, o)); err != nil {
			return err
		}
	}
	return nil
}

// Read implements Store.
func (b *bucket) Read(ctx context.Context, key, tag string, offset int64, p []byte) error {
	var options minio.GetObjectOptions
	if err := options.SetRange(offset, offset+int64(len(p))-1); err != nil {
		return err
	}
	if tag != "" {
		if err := options.SetMatchETag(tag); err != nil {
			return err
		}
	}
	o, err := b.client.GetObject(ctx, b.name, b.prefix+key, options)
	if err != nil {
		return b.explain(key, err)
	}
	defer o.Close()
	if _, err = io.ReadFull(o, p); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrChanged // it is shorter now
	}
	return b.explain(key, err)
}

// Put implements Store.
func (b *bucket) Put(ctx context.Context, key string, content io.Reader, size int64, meta Meta) (Info, error) {
	var reader io.Reader = strings.NewReader("")
	part := uint64(partSize)
	if size > 0 {
		reader = content
		if _, again := content.(io.ReaderAt); !again {
			part = streamPartSize
		}
	}
	up, err := b.client.PutObject(ctx, b.name, b.prefix+key, reader, size, minio.PutObjectOptions{
		UserMetadata: metadata(meta), ContentType: "application/octet-stream", PartSize: part,
	})
	if err != nil {
		return Info{}, b.explain(key, err)
	}
	return Info{Key: key, Size: size, Tag: up.ETag, Meta: meta}, nil
}

// Copy implements Store.
func (b *bucket) Copy(ctx context.Context, from, to string, meta Meta) (Info, error) {
	up, err := b.client.CopyObject(ctx,
		minio.CopyDestOptions{Bucket: b.name, Object: b.prefix + to, ReplaceMetadata: true, UserMetadata: metadata(meta)},
		minio.CopySrcOptions{Bucket: b.name, Object: b.prefix + from})
	if err != nil {
		return Info{}, b.explain(from, err)
	}
	return Info{Key: to, Size: up.Size, Tag: up.ETag, Meta: meta}, nil
}

// Delete implements Store.
func (b *bucket) Delete(ctx context.Context, key string) error {
	err := b.explain(key, b.client.RemoveObject(ctx, b.name, b.prefix+key, minio.RemoveObjectOptions{}))
	if errors.Is(err, ErrNotExist) {
		return nil
	}
	return err
}

func metadata(m Meta) map[string]string {
	return map[string]string{
		metaMode: strconv.FormatUint(uint64(m.Mode), 8), metaUID: strconv.Itoa(int(m.UID)), metaGID: strconv.Itoa(int(m.GID)),
		metaTime: strconv.FormatInt(m.Time.UnixNano(), 10),
	}
}

func (b *bucket) info(key string, o minio.ObjectInfo) Info {
	i := Info{Key: key, Size: o.Size, Tag: o.ETag, Meta: Meta{Time: o.LastModified}}
	number := func(key string, base int) (uint64, bool) {
		n, err := strconv.ParseUint(o.UserMetadata[key], base, 63)
		return n, err == nil
	}
	mode, ok := number(metaMode, 8)
	uid, okUID := number(metaUID, 10)
	gid, okGID := number(metaGID, 10)
	if ok && okUID && okGID {
		i.Known, i.Mode, i.UID, i.GID = true, uint32(mode)&0o7777, uint32(uid), uint32(gid)
	}
	if nano, ok := number(metaTime, 10); ok {
		i.Time = time.Unix(0, int64(nano))
	}
	return i
}

// explain returns an error that names the store.
func (b *bucket) explain(key string, err error) error {
	if err == nil {
		return nil
	}
	switch r := minio.ToErrorResponse(err); {
	case r.Code == minio.NoSuchKey || r.StatusCode == http.StatusNotFound && r.Code != minio.NoSuchBucket:
		return ErrNotExist
	case r.StatusCode == http.StatusPreconditionFailed, r.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return ErrChanged
	}
	if r := minio.ToErrorResponse(err); r.StatusCode == http.StatusInsufficientStorage || r.Code == "QuotaExceeded" || r.Code == "XMinioAdminBucketQuotaExceeded" {
		return fmt.Errorf("%w: %s, bucket %s: %w", ErrFull, b.endpoint, b.name, err)
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // without the URL, which repeats the rest
	}
	return fmt.Errorf("store %s, bucket %s, %q: %w", b.endpoint, b.name, b.prefix+key, err)
}
