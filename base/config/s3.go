package config

import (
	"errors"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"time"
)

// S3 are the settings of the store that snapshots are copied to. Without a bucket there is none. The keys of the
// account have no place in the file: it is a part of every snapshot.
type S3 struct {
	SnapshotS3Endpoint        string `json:"snapshotS3Endpoint" flag:"snapshot-s3-endpoint" alias:"etcd-s3-endpoint"`
	SnapshotS3Bucket          string `json:"snapshotS3Bucket" flag:"snapshot-s3-bucket" alias:"etcd-s3-bucket"`
	SnapshotS3Folder          string `json:"snapshotS3Folder" flag:"snapshot-s3-folder" alias:"etcd-s3-folder"`
	SnapshotS3Region          string `json:"snapshotS3Region" flag:"snapshot-s3-region" alias:"etcd-s3-region"`
	SnapshotS3Retention       int    `json:"snapshotS3Retention" flag:"snapshot-s3-retention" alias:"etcd-s3-retention"`
	SnapshotS3CredentialsFile string `json:"snapshotS3CredentialsFile" flag:"snapshot-s3-credentials-file"`
	SnapshotS3AccessKey       string `json:"-" flag:"snapshot-s3-access-key" alias:"etcd-s3-access-key" env:"AWS_ACCESS_KEY_ID"`
	SnapshotS3SecretKey       string `json:"-" flag:"snapshot-s3-secret-key" alias:"etcd-s3-secret-key" env:"AWS_SECRET_ACCESS_KEY"`
	SnapshotS3SessionToken    string `json:"-" flag:"snapshot-s3-session-token" alias:"etcd-s3-session-token" env:"AWS_SESSION_TOKEN"`
	SnapshotS3CAFile          string `json:"snapshotS3CAFile" flag:"snapshot-s3-ca-file" alias:"etcd-s3-endpoint-ca"`
	SnapshotS3SkipTLSVerify   bool   `json:"snapshotS3SkipTLSVerify" flag:"snapshot-s3-skip-tls-verify" alias:"etcd-s3-skip-ssl-verify"`
	SnapshotS3Insecure        bool   `json:"snapshotS3Insecure" flag:"snapshot-s3-insecure" alias:"etcd-s3-insecure"`
	SnapshotS3BucketLookup    string `json:"snapshotS3BucketLookup" flag:"snapshot-s3-bucket-lookup" alias:"etcd-s3-bucket-lookup-type"`
	SnapshotS3Timeout         string `json:"snapshotS3Timeout" flag:"snapshot-s3-timeout" alias:"etcd-s3-timeout"`
}

func defaultS3() S3 {
	return S3{SnapshotS3Endpoint: "s3.amazonaws.com", SnapshotS3Region: "us-east-1", SnapshotS3BucketLookup: "auto", SnapshotS3Timeout: "5m"}
}

func bucketLookups() []string { return []string{"auto", "dns", "path"} }

// s3Keys are the keys of the settings of the store: those that commands about snapshots take, too.
func s3Keys() []string {
	var keys []string
	for _, f := range fields(Default()) {
		if strings.HasPrefix(f.flag, "snapshot-s3-") {
			keys = append(keys, f.name())
		}
	}
	return keys
}

// Validate checks the settings of the store, as Server.Validate does among others.
func (s *S3) Validate() error {
	var p problems
	s.validate(&p)
	return errors.Join(p...)
}

// errHalfKeys is of settings without a key in the file.
var errHalfKeys = errors.New("--snapshot-s3-access-key and --snapshot-s3-secret-key, " +
	"or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, belong together: set both or neither")

// validate leaves the files to what reads them.
func (s *S3) validate(p *problems) {
	p.oneOf("snapshotS3BucketLookup", s.SnapshotS3BucketLookup, bucketLookups())
	if d, err := time.ParseDuration(s.SnapshotS3Timeout); err != nil || d < time.Second {
		p.add("snapshotS3Timeout", "%q is not a duration of at least a second: write it as in 30s or 5m", s.SnapshotS3Timeout)
	}
	if s.SnapshotS3Retention < 0 {
		p.add("snapshotS3Retention", "%d snapshots cannot be kept: use 1 or more, or 0 for as many as on the server",
			s.SnapshotS3Retention)
	}
	if s.SnapshotS3Bucket == "" {
		return
	}
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`).MatchString(s.SnapshotS3Bucket) {
		p.add("snapshotS3Bucket", "%q cannot be the name of a bucket: use 3 to 63 lower-case letters, digits, dots and dashes",
			s.SnapshotS3Bucket)
	}
	if !regexp.MustCompile(`^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?$`).MatchString(s.SnapshotS3Endpoint) {
		p.add("snapshotS3Endpoint", "%q is not HOST[:PORT]: leave out the scheme and the path; %s is for a store without TLS",
			s.SnapshotS3Endpoint, label("snapshotS3Insecure"))
	}
	blank := strings.ContainsFunc(s.SnapshotS3Folder, func(r rune) bool { return r <= ' ' || r == 0x7f })
	if blank || strings.Contains(strings.Trim(s.SnapshotS3Folder, "/"), "//") {
		p.add("snapshotS3Folder", "%q cannot be a folder: write names with a slash between them", s.SnapshotS3Folder)
	}
	if (s.SnapshotS3AccessKey == "") != (s.SnapshotS3SecretKey == "") {
		*p = append(*p, errHalfKeys)
	}
}

// MissingFiles returns the files for snapshots that the settings name and this machine does not have.
func (s *Server) MissingFiles() []string {
	var missing []string
	for _, path := range []string{s.SnapshotPassphraseFile, s.SnapshotS3CredentialsFile, s.SnapshotS3CAFile} {
		if _, err := os.Stat(path); path != "" && errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, path)
		}
	}
	return missing
}
