package kubelith

import (
	"context"
	"io"
	"testing"
	"time"
)

// TestUntilEnd: the context ends with the reader, not before, and with its parent.
func TestUntilEnd(t *testing.T) {
	in, out := io.Pipe()
	ctx := untilEnd(t.Context(), in)
	if _, err := out.Write([]byte("what it reads is dropped\n")); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Fatal("it ended while the reader has not")
	}
	out.Close()
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Error("it goes on after the end of the reader")
	}
	parent, cancel := context.WithCancel(t.Context())
	in, out = io.Pipe()
	defer out.Close()
	ctx = untilEnd(parent, in)
	cancel()
	if <-ctx.Done(); ctx.Err() == nil {
		t.Error("it goes on after its parent")
	}
}
