package driver

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/plugins/examples/fuse/store"
)

// answer returns an error with a gRPC code.
func answer(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := codes.Internal
	switch {
	case errors.Is(err, store.ErrNotExist):
		code = codes.NotFound
	case errors.Is(err, store.ErrFull):
		code = codes.ResourceExhausted
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		code = codes.Aborted
	}
	return status.Error(code, err.Error())
}

// invalid returns the error for an invalid request.
func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// missing returns an error for the first name without a value; names and values alternate.
func missing(pairs ...string) error {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			return invalid("%s is missing", pairs[i])
		}
	}
	return nil
}
