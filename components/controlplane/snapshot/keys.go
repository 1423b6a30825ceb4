package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"filippo.io/age"
)

// Keys are what snapshots are encrypted with: a passphrase, or public keys of age. Without either they are not.
type Keys struct {
	// PassphraseFile has the passphrase in its first line.
	PassphraseFile string
	// Recipients are public keys, age1....
	Recipients []string
}

// kind returns how these keys encrypt, as Header.Encryption has it.
func (k Keys) kind() string {
	switch {
	case k.PassphraseFile != "":
		return "passphrase"
	case len(k.Recipients) > 0:
		return "key"
	}
	return ""
}

// Validate reads the passphrase and parses the keys.
func (k Keys) Validate() error {
	_, err := k.recipients()
	return err
}

func (k Keys) recipients() ([]age.Recipient, error) {
	if k.PassphraseFile != "" {
		if len(k.Recipients) > 0 {
			return nil, errors.New("a snapshot is encrypted with a passphrase or for keys, not with both: leave one of them out")
		}
		phrase, err := readPassphrase(k.PassphraseFile)
		if err != nil {
			return nil, err
		}
		r, err := age.NewScryptRecipient(phrase)
		if err != nil {
			return nil, err
		}
		r.SetWorkFactor(workFactor)
		return []age.Recipient{r}, nil
	}
	var all []age.Recipient
	for _, text := range k.Recipients {
		r, err := age.ParseX25519Recipient(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not a public key of age, such as age1...: %w", text, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// minPassphrase is the least length of a passphrase, in bytes.
const minPassphrase = 12

// workFactor makes each try of a passphrase take 64 MiB, as much as a small machine has to spare; age's default takes
// 256.
const workFactor = 16

func readPassphrase(file string) (string, error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("passphrase file %s does not exist", file)
	}
	if err != nil {
		return "", fmt.Errorf("passphrase file: %w", err)
	}
	info, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("passphrase file %s can be read by others: chmod 600 it", file)
	}
	phrase, _, _ := strings.Cut(string(content), "\n")
	if phrase = strings.TrimSuffix(phrase, "\r"); len(phrase) < minPassphrase {
		return "", fmt.Errorf("the passphrase in %s is shorter than %d characters: use a longer one", file, minPassphrase)
	}
	return phrase, nil
}

// Identities reads what decrypts snapshots: a passphrase, and a file of private keys as age-keygen writes it. Either
// may be empty.
func Identities(passphraseFile, identityFile string) ([]age.Identity, error) {
	var all []age.Identity
	if passphraseFile != "" {
		phrase, err := readPassphrase(passphraseFile)
		if err != nil {
			return nil, err
		}
		id, err := age.NewScryptIdentity(phrase)
		if err != nil {
			return nil, err
		}
		all = append(all, id)
	}
	if identityFile != "" {
		f, err := os.Open(identityFile)
		if err != nil {
			return nil, fmt.Errorf("identity file: %w", err)
		}
		defer f.Close()
		ids, err := age.ParseIdentities(f)
		if err != nil {
			return nil, fmt.Errorf("identity file %s: %w", identityFile, err)
		}
		all = append(all, ids...)
	}
	return all, nil
}
