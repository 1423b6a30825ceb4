package passwordfile

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"k8s.io/apiserver/pkg/authentication/user"
)

// maxSize of a password file, in bytes.
const maxSize = 1 << 20

// load reads a file that only its owner, who is root or the server's user, may read.
func load(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := private(path, info, os.Geteuid()); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxSize {
		return nil, fmt.Errorf("%s: it is larger than 1 MiB", path)
	}
	return text, nil
}

// private refuses a file that other users can read or change. The bits of the group cover access control lists too.
func private(path string, info fs.FileInfo, self int) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: it is not a regular file", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%s: users other than its owner may read or write it (mode %#o): chmod 600 %s", path, mode, path)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Uid != 0 && stat.Uid != uint32(self) {
		return fmt.Errorf("%s: it belongs to user %d, who could make themselves administrator: chown root %s", path, stat.Uid, path)
	}
	return nil
}

// line is a user of the file.
type line struct {
	password string
	user     *user.DefaultInfo
}

// parse reads lines `password,user,uid` or `password,user,uid,"group1,group2"`. An error names the line and repeats
// nothing of it.
func parse(text []byte) ([]line, error) {
	reader := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(text, []byte("\ufeff")))) // the mark of some editors
	reader.FieldsPerRecord = -1
	var lines []line
	first := map[string]int{} // the line of each user
	for {
		fields, err := reader.Read()
		var syntax *csv.ParseError
		switch {
		case errors.Is(err, io.EOF):
			return lines, nil
		case errors.As(err, &syntax):
			return nil, fmt.Errorf("line %d: %s", syntax.StartLine, quoting(syntax.Err))
		case err != nil:
			return nil, err
		}
		number, _ := reader.FieldPos(0)
		l, err := parseLine(fields)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if before, twice := first[l.user.Name]; twice {
			return nil, fmt.Errorf("line %d: its user is also that of line %d", number, before)
		}
		first[l.user.Name] = number
		lines = append(lines, l)
	}
}

func quoting(err error) string {
	if errors.Is(err, csv.ErrBareQuote) {
		return `a field with a quote is itself in quotes, with the quote doubled: "pass""word"`
	}
	return "a quoted field has no closing quote, or more text after it"
}

func parseLine(fields []string) (line, error) {
	for _, field := range fields {
		if strings.ContainsAny(field, "\r\n") {
			return line{}, errors.New("a field goes on in the next line: its closing quote is missing")
		}
	}
	switch n := len(fields); {
	case n < 3:
		return line{}, fmt.Errorf(`it has %d of the fields password,user,uid,"group1,group2", of which only the groups may be missing`, n)
	case n > 4:
		return line{}, fmt.Errorf(`it has %d fields: several groups are one field in quotes, as in password,user,uid,"group1,group2"`, n)
	}
	password, name, uid := fields[0], fields[1], fields[2]
	groups := []string{}
	if len(fields) == 4 && fields[3] != "" {
		groups = strings.Split(fields[3], ",")
	}
	switch {
	case password == "":
		return line{}, errors.New("the password is empty")
	case name == "":
		return line{}, errors.New("the user name is empty")
	case strings.HasPrefix(name, "system:"):
		return line{}, errors.New("user names with system: are those of components, which have certificates")
	case strings.Contains(name, ":"):
		return line{}, errors.New("the user name has a colon, which basic authentication cannot send")
	case slices.Contains(groups, ""):
		return line{}, errors.New("a group is empty")
	}
	for _, field := range append([]string{name, uid}, groups...) {
		if strings.TrimSpace(field) != field {
			return line{}, errors.New("a user name, uid or group begins or ends with a space")
		}
	}
	return line{password, &user.DefaultInfo{Name: name, UID: uid, Groups: groups}}, nil
}
