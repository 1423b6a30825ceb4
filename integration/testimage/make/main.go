// Command make prints where it has put an archive of the test image, for tests on a machine that cannot make it: make
// DIRECTORY.
package main

import (
	"fmt"
	"os"

	"kubelith.io/kubelith/integration/testimage"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./integration/testimage/make DIRECTORY")
		os.Exit(2)
	}
	archive, err := testimage.Archive(".", os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(archive)
}
