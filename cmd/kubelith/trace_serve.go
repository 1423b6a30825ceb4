package kubelith

import (
	"context"
	"errors"
	"io"
)

func loopback(string) error { return nil }

func serveTraces(context.Context, io.Writer, recorder, string) error {
	return errors.New("--serve is not built in yet")
}
