package metrics

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

const (
	// answerLimit in bytes is more than a kubelet with two thousand containers answers.
	answerLimit = 2 << 20
	// lineLimit in bytes is more than the names of a container, its pod and its namespace take.
	lineLimit = 4 << 10
	// pieceLimit in bytes is how much is parsed at once: the parser needs some ten times that memory.
	pieceLimit = 64 << 10
)

// wanted reads a kubelet's answer and calls parse with the lines of the given families, whole lines and a piece at a
// time: a kubelet may answer with anything, which must not change how an answer is parsed. Comments are left out, so
// that metrics have no type.
func wanted(answer io.Reader, families map[string]bool, parse func(piece []byte) error) error {
	left := &io.LimitedReader{R: answer, N: answerLimit + 1}
	lines := bufio.NewReaderSize(left, lineLimit)
	var piece []byte
	found, empty := false, true
	for {
		line, err := lines.ReadSlice('\n')
		if left.N == 0 {
			return fmt.Errorf("the response is longer than %d MiB", answerLimit>>20)
		}
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0 && !found && !empty:
			return errors.New("the response has no resource metrics")
		case errors.Is(err, io.EOF) && len(line) == 0:
			return parse(piece)
		case errors.Is(err, io.EOF):
			return errors.New("the response ends in the middle of a line")
		case errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("a line of the response is longer than %d bytes", lineLimit)
		case err != nil:
			return err
		}
		empty = false
		name := line[:max(0, bytes.IndexAny(line, "{ \t"))]
		if !families[string(name)] {
			continue
		}
		found = true
		if piece = append(piece, line...); len(piece) > pieceLimit {
			if err := parse(piece); err != nil {
				return err
			}
			piece = piece[:0]
		}
	}
}
