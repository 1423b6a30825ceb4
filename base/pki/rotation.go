package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	certutil "k8s.io/client-go/util/cert"

	"kubelith.io/kubelith/base/atomicfile"
)

// Rotation is how far this server has replaced its CAs with new ones, which have new keys. Beside the CAs are,
// meanwhile:
//
//	rotation.json   a Rotation; written after the directories and removed before them
//	former/, next/  the CAs from before the rotation, and those after it
//
// Both directories stay as they are. Ensure derives everything else from them and the phase, so that it can be repeated
// after a crash at any point.
type Rotation struct {
	ID    string `json:"id"` // ends the names of the new CAs
	Phase Phase  `json:"phase"`
}

// Phase is what a server does with the two generations of CAs.
type Phase string

// The phases, in their order.
const (
	Trust Phase = "trust" // both are trusted; the former sign
	Sign  Phase = "sign"  // the new ones sign everything except the API's serving certificate
	Serve Phase = "serve" // and that, too
	Drop  Phase = "drop"  // only the new ones are trusted
)

// Phases returns all, in their order.
func Phases() []Phase { return []Phase{Trust, Sign, Serve, Drop} }

// Reached reports whether p is that phase or a later one; the empty Phase is before all.
func (p Phase) Reached(that Phase) bool {
	return slices.Index(Phases(), p) >= slices.Index(Phases(), that)
}

// following returns the next phase.
func (p Phase) following() Phase {
	all := Phases()
	return all[min(slices.Index(all, p)+1, len(all)-1)]
}

// Files in the directory of Ensure: the cluster's CA, and the CAs that clients of the API trust.
const (
	ClusterCAFile    = clusterCA + ".crt"
	ClusterTrustFile = "cluster-trust.crt"
)

const (
	rotationFile         = "rotation.json"
	formerDir, nextDir   = "former", "next"
	clusterCA, kubeletCA = "cluster-ca", "kubelet-ca"
	frontProxyCA         = "front-proxy-ca"
	kubeletTrustFile     = "kubelet-trust.crt"
	frontProxyTrustFile  = "front-proxy-trust.crt"
)

// rotated are the CAs that a rotation replaces. The one of etcd's members is not: etcd reads it when it starts.
func rotated() []string { return []string{clusterCA, kubeletCA, frontProxyCA} }

// nextFiles are the names of the files in next/.
func nextFiles() (all []string) {
	for _, ca := range rotated() {
		all = append(all, ca+".crt", ca+".key")
	}
	return all
}

// rotationFiles are all files of a rotation below the directory of Ensure, in the order in which they are written.
func rotationFiles() (all []string) {
	for _, name := range nextFiles() {
		all = append(all, nextDir+"/"+name, formerDir+"/"+name)
	}
	return append(all, formerDir+"/"+kubeletTrustFile, rotationFile)
}

// ReadRotation returns nil when there is none.
func ReadRotation(dir string) (*Rotation, error) {
	text, err := os.ReadFile(filepath.Join(dir, rotationFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	var r Rotation
	if err := json.Unmarshal(text, &r); err != nil || r.ID == "" || !slices.Contains(Phases(), r.Phase) {
		return nil, fmt.Errorf("pki: %s is damaged: restore it from a backup", filepath.Join(dir, rotationFile))
	}
	return &r, nil
}

func (r Rotation) write(dir string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, rotationFile), append(text, '\n')); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	return nil
}

// Report is the value of a Node's annotation names.CAAnnotation, and ParseReport reads it.
func (r Rotation) Report() string { return r.ID + " " + string(r.Phase) }

// ParseReport returns the zero Rotation for what Report has not written.
func ParseReport(text string) Rotation {
	id, phase, _ := strings.Cut(text, " ")
	if p := Phase(phase); p.Reached(Trust) {
		return Rotation{ID: id, Phase: p}
	}
	return Rotation{}
}

// NewCAs generates the CAs of a rotation, as files by name. They contain private keys.
func NewCAs(id string, now time.Time) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, ca := range rotated() {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("pki: generate a key: %w", err)
		}
		keyDER, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			return nil, fmt.Errorf("pki: encode a key: %w", err)
		}
		template := caTemplate("kubelith-"+ca+"-"+id, now)
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			return nil, fmt.Errorf("pki: sign a CA: %w", err)
		}
		files[ca+".crt"] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		files[ca+".key"] = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	}
	return files, nil
}

// NextCAs returns what NewCAs has generated for the rotation with that id, if this server has it.
func NextCAs(dir, id string) (map[string][]byte, error) {
	r, err := ReadRotation(dir)
	if err != nil {
		return nil, err
	}
	if r == nil || r.ID != id {
		return nil, fmt.Errorf("this server does not have the CAs of rotation %s", id)
	}
	return readFiles(filepath.Join(dir, nextDir), nextFiles())
}

func readFiles(dir string, files []string) (map[string][]byte, error) {
	all := map[string][]byte{}
	for _, name := range files {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("pki: %w", err)
		}
		all[name] = data
	}
	return all, nil
}

// BeginRotation stores the new CAs of a rotation, in its first phase. It replaces one in the first phase with another
// id, whose CAs have signed nothing. The caller calls Ensure afterwards; no other caller may do so meanwhile.
func BeginRotation(dir, id string, next map[string][]byte) error {
	r, err := ReadRotation(dir)
	switch {
	case err != nil:
		return err
	case r != nil && r.ID == id:
		return nil
	case r != nil && r.Phase != Trust:
		return fmt.Errorf("rotation %s of the CAs is in phase %s on this server: finish it first", r.ID, r.Phase)
	}
	for _, name := range nextFiles() {
		if len(next[name]) == 0 {
			return fmt.Errorf("the new CAs lack %s", name)
		}
	}
	if err := endRotation(dir); err != nil {
		return err
	}
	former, err := readFiles(dir, append(nextFiles(), kubeletTrustFile))
	if err != nil {
		return err
	}
	for sub, files := range map[string]map[string][]byte{nextDir: next, formerDir: former} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return fmt.Errorf("pki: %w", err)
		}
		for name, data := range files {
			if err := atomicfile.Write(filepath.Join(dir, sub, name), data); err != nil {
				return fmt.Errorf("pki: %w", err)
			}
		}
	}
	return Rotation{ID: id, Phase: Trust}.write(dir)
}

// AdvanceRotation begins the next phase, unless there is none. The caller calls Ensure afterwards.
func AdvanceRotation(dir string) error {
	r, err := ReadRotation(dir)
	if err != nil {
		return err
	}
	if r == nil {
		return errors.New("pki: no rotation of the CAs is under way")
	}
	return Rotation{ID: r.ID, Phase: r.Phase.following()}.write(dir)
}

// EndRotation forgets the former CAs, after the last phase.
func EndRotation(dir string) error {
	r, err := ReadRotation(dir)
	if err != nil || r == nil {
		return err
	}
	if r.Phase != Drop {
		return fmt.Errorf("pki: rotation %s of the CAs is in phase %s", r.ID, r.Phase)
	}
	return endRotation(dir)
}

func endRotation(dir string) error {
	if err := os.Remove(filepath.Join(dir, rotationFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("pki: %w", err)
	}
	for _, sub := range []string{formerDir, nextDir} {
		if err := os.RemoveAll(filepath.Join(dir, sub)); err != nil {
			return fmt.Errorf("pki: %w", err)
		}
	}
	return nil
}

// arrange brings the CAs and the files of trusted ones in line with the rotation, which may be nil.
func (s *store) arrange(r *Rotation) error {
	if r == nil {
		return endRotation(s.dir) // what a crash has left
	}
	former, err := readFiles(filepath.Join(s.dir, formerDir), append(nextFiles(), kubeletTrustFile))
	if err != nil {
		return err
	}
	next, err := readFiles(filepath.Join(s.dir, nextDir), nextFiles())
	if err != nil {
		return err
	}
	signing := former
	if r.Phase.Reached(Sign) {
		signing = next
	}
	for _, name := range nextFiles() {
		if err := s.replace(name, signing[name]); err != nil {
			return err
		}
	}
	for file, parts := range map[string][2][]byte{
		ClusterTrustFile:    {former[ClusterCAFile], next[ClusterCAFile]},
		frontProxyTrustFile: {former[frontProxyCA+".crt"], next[frontProxyCA+".crt"]},
		kubeletTrustFile:    {former[kubeletTrustFile], next[kubeletCA+".crt"]},
	} {
		trust := bytes.Join(parts[:], nil)
		if r.Phase == Drop {
			trust = parts[1]
		}
		if err := s.replace(file, trust); err != nil {
			return err
		}
	}
	return nil
}

// ensureTrust copies the CAs into the files of trusted ones, when no rotation is under way.
func (s *store) ensureTrust() error {
	for file, ca := range map[string]string{ClusterTrustFile: clusterCA, frontProxyTrustFile: frontProxyCA} {
		data, err := os.ReadFile(filepath.Join(s.dir, ca+".crt"))
		if err != nil {
			return fmt.Errorf("pki: %w", err)
		}
		if err := s.replace(file, data); err != nil {
			return err
		}
	}
	return nil
}

// replace writes a file unless it has that content.
func (s *store) replace(name string, data []byte) error {
	path := filepath.Join(s.dir, name)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := atomicfile.WriteWith(path, data, s.files); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	s.changed = append(s.changed, name)
	return nil
}

// generations returns the certificates of a CA before and after the rotation.
func (s *store) generations(ca string) (all []*x509.Certificate, err error) {
	for _, sub := range []string{formerDir, nextDir} {
		data, err := os.ReadFile(filepath.Join(s.dir, sub, ca+".crt"))
		if err != nil {
			return nil, fmt.Errorf("pki: %w", err)
		}
		cert, err := parseCert(data)
		if err != nil {
			return nil, fmt.Errorf("pki: %s is damaged: %w", filepath.Join(s.dir, sub, ca+".crt"), err)
		}
		all = append(all, cert)
	}
	return all, nil
}

// Trusted is what other machines need to know of the CAs of this server.
type Trusted struct {
	// Rotation is the one under way; nil: none.
	Rotation *Rotation `json:"rotation,omitempty"`
	// Cluster are the CAs of the API and its users, in PEM.
	Cluster []byte `json:"cluster"`
	// Signing and KubeletSigning are the certificates of the CAs that sign for nodes now, in PEM: their clients, and
	// their kubelets' serving certificates.
	Signing        []byte `json:"signing"`
	KubeletSigning []byte `json:"kubeletSigning"`
}

// ReadTrusted reads the directory of Ensure. It returns no private key.
func ReadTrusted(dir string) (*Trusted, error) {
	r, err := ReadRotation(dir)
	if err != nil {
		return nil, err
	}
	files, err := readFiles(dir, []string{ClusterTrustFile, ClusterCAFile, kubeletCA + ".crt"})
	if err != nil {
		return nil, err
	}
	return &Trusted{Rotation: r, Cluster: files[ClusterTrustFile], Signing: files[ClusterCAFile], KubeletSigning: files[kubeletCA+".crt"]}, nil
}

// Published returns the CAs with which a machine that joins may verify the API, in PEM: the first is the one that has
// signed its serving certificate. The former CA is not among them once the new one has.
func Published(dir string) ([]byte, error) {
	r, err := ReadRotation(dir)
	if err != nil {
		return nil, err
	}
	name := ClusterTrustFile
	if r != nil && r.Phase.Reached(Serve) {
		name = filepath.Join(nextDir, ClusterCAFile)
	}
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return data, nil
}

// FormerCAs returns the certificates that a rotation drops; none without a rotation.
func FormerCAs(dir string) ([]*x509.Certificate, error) {
	r, err := ReadRotation(dir)
	if err != nil || r == nil {
		return nil, err
	}
	var all []*x509.Certificate
	for _, ca := range rotated() {
		certs, err := certutil.CertsFromFile(filepath.Join(dir, formerDir, ca+".crt"))
		if err != nil {
			return nil, fmt.Errorf("pki: %w", err)
		}
		all = append(all, certs...)
	}
	return all, nil
}

// caTemplate is the certificate of a new CA.
func caTemplate(cn string, now time.Time) *x509.Certificate {
	return &x509.Certificate{
		Subject:               pkix.Name{CommonName: cn},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(caLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true, // it signs no other CA
	}
}
