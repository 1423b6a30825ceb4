package storage

import (
	"fmt"
	"reflect"
	"unsafe"

	"k8s.io/client-go/tools/record"
)

// shutDown ends what sends the Events of one of the sidecars' controllers. Upstream starts it with the controller,
// keeps the recorder alone, in a field that is its own, and leaves the goroutines to the end of the process: three for
// each controller of each term.
func shutDown(controller any) {
	field := reflect.Indirect(reflect.ValueOf(controller)).FieldByName("eventRecorder")
	recorder, ok := reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem().Interface().(record.EventRecorder)
	if !ok {
		panic(fmt.Sprintf("%T has no recorder of Events any more", controller)) // seen by the tests after an upgrade of the library
	}
	// The broadcaster is embedded in its recorders.
	recorder.(interface{ Shutdown() }).Shutdown()
}
