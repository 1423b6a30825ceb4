// Package store keeps the objects behind a volume: in a bucket of an S3-compatible store, or in a directory.
package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"time"
)

// Store is a set of objects. Keys are relative to its prefix and have no leading slash; the key of a directory ends in
// a slash, and the root is the empty key.
type Store interface {
	// Check returns the reason if the store cannot be used now.
	Check(ctx context.Context) error
	// Stat returns one object or directory; the error is ErrNotExist if there is none.
	Stat(ctx context.Context, key string) (Info, error)
	// List calls f for what is below a directory: its entries, or with recursive every object of its tree.
	List(ctx context.Context, dir string, recursive bool, f func(Info) error) error
	// Read fills p from an offset. It returns ErrChanged if the object no longer has the tag.
	Read(ctx context.Context, key, tag string, offset int64, p []byte) error
	// Put writes an object. A directory has no content. Content that is no io.Seeker is sent once, and not again.
	Put(ctx context.Context, key string, content io.Reader, size int64, meta Meta) (Info, error)
	// Copy copies an object; onto itself it changes its metadata.
	Copy(ctx context.Context, from, to string, meta Meta) (Info, error)
	// Delete deletes an object or an empty directory. It is no error if there is none.
	Delete(ctx context.Context, key string) error
}

// Info is an object or a directory.
type Info struct {
	Key  string
	Size int64
	// Tag changes with the content.
	Tag string
	Meta
}

// Dir reports whether it is a directory.
func (i Info) Dir() bool { return i.Key == "" || strings.HasSuffix(i.Key, "/") }

// Meta is what a file has in addition to its content.
type Meta struct {
	// Known is false if another program has written the object: then it has a time only.
	Known    bool
	Mode     uint32 // permissions
	UID, GID uint32
	Time     time.Time // of the last change of the content
}

var (
	// ErrNotExist: there is no such object.
	ErrNotExist = fs.ErrNotExist
	// ErrChanged: the object was replaced.
	ErrChanged = errors.New("the object has changed")
	// ErrFull: the store has no room.
	ErrFull = errors.New("the store is full")
)

// Config is where the objects are.
type Config struct {
	// Endpoint is the URL of the store: https://s3.example.com.
	Endpoint  string `json:"endpoint,omitempty"`
	Bucket    string `json:"bucket,omitempty"`
	Region    string `json:"region,omitempty"`
	AccessKey string `json:"accessKey,omitempty"`
	SecretKey string `json:"secretKey,omitempty"`
	// Prefix of all keys, without slashes at its ends.
	Prefix string `json:"prefix,omitempty"`
	// Directory of the node, instead of a bucket.
	Directory string `json:"directory,omitempty"`
}

// The keys of a Secret with the store of a volume.
const (
	keyEndpoint, keyBucket, keyRegion = "endpoint", "bucket", "region"
	keyAccess, keySecret, keyPrefix   = "access-key", "secret-key", "prefix"
)

// FromSecret returns the store that a Secret names. A directory cannot be named there: who may create Secrets would
// reach all files of a node.
func FromSecret(secret map[string]string) (Config, error) {
	var c Config
	for key, value := range secret {
		value = strings.TrimSpace(value)
		switch key {
		case keyEndpoint:
			c.Endpoint = value
		case keyBucket:
			c.Bucket = value
		case keyRegion:
			c.Region = value
		case keyAccess:
			c.AccessKey = value
		case keySecret:
			c.SecretKey = value
		case keyPrefix:
			c.Prefix = value
		default:
			return Config{}, fmt.Errorf("the Secret has the unknown key %q: use %s", key,
				strings.Join([]string{keyEndpoint, keyBucket, keyRegion, keyAccess, keySecret, keyPrefix}, ", "))
		}
	}
	return c, c.Validate()
}

// Validate returns the reason if the configuration cannot name a store.
func (c Config) Validate() error {
	switch {
	case c.Directory != "" && (c.Endpoint != "" || c.Bucket != ""):
		return errors.New("the store has a directory and a bucket: set one of them")
	case c.Directory != "":
		if !filepath.IsAbs(c.Directory) {
			return fmt.Errorf("the directory of the store, %q, is not absolute", c.Directory)
		}
		return nil
	case c.Endpoint == "" || c.Bucket == "":
		return errors.New("the store has no endpoint or no bucket: set both, in the Secret of the StorageClass or in config: of the plugin")
	}
	_, _, err := hostOf(c.Endpoint)
	return err
}

// Sub returns the store of one part of the keys.
func (c Config) Sub(prefix string) Config {
	if c.Prefix != "" {
		prefix = strings.Trim(c.Prefix, "/") + "/" + prefix
	}
	c.Prefix = prefix
	return c
}

// Open returns a store. It does not connect.
func Open(c Config) (Store, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Directory != "" {
		return &directory{top: c.Directory, prefix: strings.Trim(c.Prefix, "/")}, nil
	}
	return openBucket(c)
}
