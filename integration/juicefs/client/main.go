// Command client does for the program juicefs, in the image of a mount pod and in that of the driver. It has the
// commands that JuiceFS' CSI driver calls, and serves a directory of the node: metaurl is dir:///path. It is also
// umount there, by the name that it is called by, as the driver expects the messages of util-linux.
package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// version is below 1.2.1, from which on the driver hands the open /dev/fuse from a mount pod to the next.
const version = "juicefs version 1.1.0+kubelith"

func main() {
	log.SetFlags(log.Lmicroseconds | log.LUTC)
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	log.Printf("%s %s", name, strings.Join(args, " "))
	var err error
	switch {
	case name == "mount.juicefs":
		err = mount(args)
	case name == "umount":
		err = umount(args)
	case len(args) == 0:
		err = errors.New("which command?")
	case args[0] == "mount":
		err = mount(args[1:])
	case args[0] == "umount":
		err = umount(args[1:])
	default:
		err = run(args[0], args[1:])
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

func run(command string, args []string) error {
	switch command {
	case "version", "--version":
		fmt.Println(version)
	case "format": // [options] metaurl name
		if len(args) < 2 {
			return errors.New("format: metaurl and name are missing")
		}
		dir, err := directory(args[len(args)-2])
		if err != nil {
			return err
		}
		return os.MkdirAll(dir, 0o777)
	case "status": // metaurl. Where there is no directory, as in the driver's pods, the file system has a UUID all the same.
		if len(args) == 0 {
			return errors.New("status: metaurl is missing")
		}
		sum := sha256.Sum256([]byte(args[0]))
		fmt.Printf("{\n  \"Setting\": {\n    \"UUID\": \"%x-%x-%x-%x-%x\"\n  }\n}\n", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
	case "quota", "auth": // accepted, and not enforced
	default:
		return fmt.Errorf("%s is not a command that CSI driver v0.30.0 is known to call", command)
	}
	return nil
}

// directory of a metaurl.
func directory(metaurl string) (string, error) {
	dir, ok := strings.CutPrefix(metaurl, "dir://")
	if !ok || !filepath.IsAbs(dir) {
		return "", fmt.Errorf("metaurl %q is not dir:///path", metaurl)
	}
	return dir, nil
}

// mount serves until it is unmounted: METAURL MOUNTPOINT -o option,option
func mount(args []string) error {
	if len(args) != 4 || args[2] != "-o" {
		return fmt.Errorf("mount %q: not METAURL MOUNTPOINT -o OPTIONS", args)
	}
	dir, err := directory(args[0])
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("database is not formatted, please run `juicefs format ...` first: %w", err)
	}
	options := fuse.MountOptions{DirectMountStrict: true, AllowOther: true, FsName: "JuiceFS:" + filepath.Base(dir), Name: "juicefs"}
	for option := range strings.SplitSeq(args[3], ",") {
		switch name, value, _ := strings.Cut(option, "="); name {
		case "subdir":
			dir = filepath.Join(dir, value)
			if err := os.MkdirAll(dir, 0o777); err != nil {
				return err
			}
			if err := os.Chmod(dir, 0o777); err != nil { // whatever the umask
				return err
			}
		case "ro":
			options.Options = append(options.Options, option)
		}
	}
	root, err := fs.NewLoopbackRoot(dir)
	if err != nil {
		return err
	}
	mountpoint := args[1]
	if err := os.MkdirAll(mountpoint, 0o777); err != nil { // nothing else creates it for a sidecar
		return err
	}
	// The driver knows a mounted file system by the inode of its root.
	server, err := fs.Mount(mountpoint, root, &fs.Options{MountOptions: options, RootStableAttr: &fs.StableAttr{Ino: 1}})
	if err != nil {
		return fmt.Errorf("mount %s: %w", mountpoint, err)
	}
	log.Printf("%s is mounted at %s", dir, mountpoint)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-ended
		unix.Unmount(mountpoint, unix.MNT_DETACH)
		os.Exit(0)
	}()
	server.Wait()
	return nil
}

// umount [-l] PATH, with the words of util-linux.
func umount(args []string) error {
	flags := 0
	if slices.Contains(args, "-l") {
		flags = unix.MNT_DETACH
	}
	args = slices.DeleteFunc(args, func(arg string) bool { return arg == "-l" })
	if len(args) != 1 {
		return fmt.Errorf("%q: not [-l] PATH", args)
	}
	switch err := unix.Unmount(args[0], flags); {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%s: not mounted", args[0])
	case err != nil:
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return nil
}
