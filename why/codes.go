package why

// Code is a stable name of a cause, for programs.
type Code string

// The codes. docs/why.md lists them; a test compares the two.
const (
	// Of any object.

	OK                Code = "OK"                // as it should be
	InProgress        Code = "InProgress"        // on its way, without a fault
	NotFound          Code = "NotFound"          // the object does not exist
	Deleting          Code = "Deleting"          // being deleted, and that takes its time
	FinalizerHolds    Code = "FinalizerHolds"    // deleted, but a finalizer keeps the object
	ConditionNotTrue  Code = "ConditionNotTrue"  // a condition of the object says that something is wrong
	EventWarns        Code = "EventWarns"        // a warning Event of the last hour, which no field confirms: no fault
	ObservationBehind Code = "ObservationBehind" // its controller has not seen the object's last change
)
