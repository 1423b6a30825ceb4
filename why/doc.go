// Package why explains why an object of the cluster is not as it should be: the cause in one sentence, the evidence for
// it, what to do, and which suspects were ruled out.
//
// It is a client: it reads through the API with the rights of its caller, and keeps of a Secret the names of its keys
// only. It decides from fields (conditions, reasons, exit codes, the spec compared with the nodes). Where upstream has
// a fact in a message only, one parser per message names its source. An Event supports a cause only while the object's
// state still shows it.
//
// One file per noun. To add a kind: write a function that explains it, as the others do, and its line in kinds.go.
package why
