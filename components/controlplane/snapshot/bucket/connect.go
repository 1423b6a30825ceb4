package bucket

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"kubelith.io/kubelith/base/pki"
)

// credentials returns the keys of the account. Errors do not quote the file, which may have them in any form.
func (o Options) credentials() (*credentials.Credentials, error) {
	if o.AccessKey != "" {
		return credentials.NewStaticV4(o.AccessKey, o.SecretKey, o.SessionToken), nil
	}
	if o.CredentialsFile == "" {
		return nil, errors.New("the account of the store has no keys: set --snapshot-s3-credentials-file, " +
			"or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment")
	}
	info, err := os.Stat(o.CredentialsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("credentials file %s does not exist", o.CredentialsFile)
	}
	if err != nil {
		return nil, fmt.Errorf("credentials file: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("credentials file %s can be read by others: chmod 600 it", o.CredentialsFile)
	}
	keys := credentials.NewFileAWSCredentials(o.CredentialsFile, "")
	if v, err := keys.GetWithContext(&credentials.CredContext{Client: http.DefaultClient}); err != nil || v.AccessKeyID == "" || v.SecretAccessKey == "" {
		return nil, fmt.Errorf("credentials file %s has no keys: "+
			"write [default], aws_access_key_id = ... and aws_secret_access_key = ..., each on its own line", o.CredentialsFile)
	}
	return keys, nil
}

// dialTimeout is for a store that does not answer at all.
const dialTimeout = 10 * time.Second

func (o Options) transport() (*http.Transport, error) {
	t, err := minio.DefaultTransport(!o.Insecure)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: min(dialTimeout, o.Timeout)}
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &watched{c, o.Timeout}, nil
	}
	t.ResponseHeaderTimeout = 0 // watched has the limit
	if o.Insecure {
		return t, nil
	}
	t.TLSClientConfig.InsecureSkipVerify = o.SkipTLSVerify
	if o.CAFile != "" {
		roots, err := pki.Pool(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("CA file of the store: %w", err)
		}
		t.TLSClientConfig.RootCAs = roots
	}
	t.TLSClientConfig.MinVersion = tls.VersionTLS12
	return t, nil
}

// watched is a connection that ends when nothing has passed for a time, in either direction: a large upload takes as
// long as it takes.
type watched struct {
	net.Conn
	idle time.Duration
}

// Read implements net.Conn.
func (c *watched) Read(p []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.idle)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// Write implements net.Conn. It is also progress for a read that waits.
func (c *watched) Write(p []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.idle)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}
