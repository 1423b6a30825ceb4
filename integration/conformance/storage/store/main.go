// The program store is the S3-compatible store of the tests at an address: store HOST:PORT.
package main

import (
	"fmt"
	"net/http"
	"os"

	"kubelith.io/kubelith/plugins/examples/fuse/store/storetest"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: store HOST:PORT")
		os.Exit(2)
	}
	fmt.Fprintln(os.Stderr, "store:", http.ListenAndServe(os.Args[1], &storetest.Server{}))
	os.Exit(1)
}
