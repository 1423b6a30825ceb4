package logging

import (
	"fmt"
	"math"
	"time"

	"github.com/go-logr/logr"
)

// plain turns a field's value into a string, a number, a boolean or nil. Libraries often log a pointer into something
// that changes or cannot be encoded, and no log line may be lost for that.
func plain(v any) (out any) {
	// This calls a method of the value; nil receivers are common.
	defer func() {
		if p := recover(); p != nil {
			out = fmt.Sprintf("%T (panic: %v)", v, p)
		}
	}()
	switch v := v.(type) {
	case nil, string, bool, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64:
		return v
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) { // JSON has no such numbers
			return fmt.Sprint(v)
		}
		return v
	case time.Time:
		return v.Format(timeFormat)
	case []byte:
		return string(v)
	case error:
		return v.Error()
	case fmt.Stringer:
		return v.String()
	case logr.Marshaler:
		return fmt.Sprintf("%+v", v.MarshalLog())
	}
	return fmt.Sprintf("%+v", v)
}
