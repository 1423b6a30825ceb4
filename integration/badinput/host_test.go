package badinput

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/integration/harness"
)

// TestPortsTaken: the message names the component that needs the port and the process that has it, and nothing has
// started that would have to be stopped again.
func TestPortsTaken(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{NoTestImage: true})
	for _, tc := range []struct {
		network, address, component string
		args                        []string
	}{
		{network: "tcp", address: "0.0.0.0:6443", component: "apiserver"},
		{network: "tcp", address: s.NodeIP + ":6443", component: "apiserver"},
		{network: "tcp", address: "0.0.0.0:7443", component: "apiserver", args: []string{"--https-port=7443"}},
		{network: "tcp", address: "0.0.0.0:10250", component: "kubelet"},
		{network: "tcp", address: "127.0.0.1:10248", component: "kubelet"},
		{network: "tcp", address: "0.0.0.0:10256", component: "proxy"},
		{network: "tcp", address: "127.0.0.1:7256", component: "proxy", args: []string{"--proxy-arg=healthz-bind-address=127.0.0.1:7256"}},
		{network: "udp", address: "127.0.0.1:10053", component: "dns"},
		{network: "tcp", address: s.NodeIP + ":10053", component: "dns"},
		{network: "udp", address: "0.0.0.0:10053", component: "dns"},
	} {
		t.Run(tc.network+" "+tc.address, func(t *testing.T) {
			port := listen(t, s, tc.network, tc.address)
			message := refusal(t, s, s.BinaryCommand(append([]string{"server"}, tc.args...)...), true)
			contains(t, message, port, tc.component, fmt.Sprintf("pid %d", os.Getpid()))
			for _, dir := range []string{harness.DataDir + "/server", harness.DataDir + "/agent/containerd", harness.RunDir} {
				if _, err := os.Stat(s.Path(dir)); err == nil {
					t.Errorf("%s was made", dir)
				}
			}
		})
	}
}

// listen takes a port in the sandbox for the time of the test. What another test starts at the same time holds the port
// of the test before for a moment: between fork and exec.
func listen(t *testing.T, s *harness.Server, network, address string) (port string) {
	t.Helper()
	var closer interface{ Close() error }
	harness.Eventually(t, 10*time.Second, "the port to be free", func() (err error) {
		if network == "udp" {
			closer, err = s.ListenPacket(network, address)
		} else {
			closer, err = s.Listen(address)
		}
		return err
	})
	t.Cleanup(func() { closer.Close() })
	for i := len(address) - 1; ; i-- {
		if address[i] == ':' {
			return address[i+1:]
		}
	}
}

// TestHost: what this host lacks for a server.
func TestHost(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{NoTestImage: true})

	t.Run("no nft", func(t *testing.T) {
		tools := s.Path("/var/lib/tools")
		if err := os.Mkdir(tools, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"mount", "umount", "modprobe"} {
			if path, err := exec.LookPath(name); err == nil {
				os.Symlink(path, tools+"/"+name)
			}
		}
		cmd := s.BinaryCommand("server", "--data-dir=/var/lib/nonft")
		cmd.Env = []string{"PATH=/var/lib/tools"}
		contains(t, refusal(t, s, cmd, true), "nft: not found", "install nftables")
		cmd = s.BinaryCommand("server", "--data-dir=/var/lib/nonft", "--disable=proxy") // the bridge needs it too
		cmd.Env = []string{"PATH=/var/lib/tools"}
		contains(t, refusal(t, s, cmd, true), "nft: not found", "install nftables")
	})
	t.Run("no such runtime", func(t *testing.T) {
		if _, err := exec.LookPath("youki"); err == nil {
			t.Skip("this host has youki")
		}
		message := refusal(t, s, s.BinaryCommand("server", "--data-dir=/var/lib/noyouki", "--default-runtime=youki"), true)
		contains(t, message, "youki: is the default runtime, but not in PATH: install it, or set --default-runtime runc")
		message = refusal(t, s, s.BinaryCommand("server", "--data-dir=/var/lib/noyouki", "--default-runtime=nosuch"), true)
		contains(t, message, `--default-runtime (defaultRuntime): unknown value "nosuch": use one of runc, crun, youki`)
	})
	t.Run("not root", func(t *testing.T) {
		harness.RequireProgram(t, "setpriv")
		cmd := s.BinaryCommand("server")
		// nsenter ... -- kubelith server: setpriv goes in front of the executable.
		for i, arg := range cmd.Args {
			if arg == "--" {
				rest := append([]string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"}, cmd.Args[i+1:]...)
				cmd.Args = append(cmd.Args[:i+1], rest...)
				break
			}
		}
		contains(t, refusal(t, s, cmd, true), "root")
	})
	t.Run("data directory read-only", func(t *testing.T) {
		mount(t, s, "/var/lib/readonly", "ro")
		contains(t, refusal(t, s, s.BinaryCommand("server", "--data-dir=/var/lib/readonly/d"), true), "/var/lib/readonly/d", "read-only", "--data-dir")
	})
	t.Run("file in the place of the data directory", func(t *testing.T) {
		if err := os.WriteFile(s.Path("/var/lib/file"), []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		contains(t, refusal(t, s, s.BinaryCommand("server", "--data-dir=/var/lib/file"), true), "/var/lib/file", "in the way")
		if content, _ := os.ReadFile(s.Path("/var/lib/file")); string(content) != "mine" {
			t.Errorf("the file now holds %q", content)
		}
	})
	t.Run("full disk", func(t *testing.T) {
		mount(t, s, "/var/lib/full", "size=8m")
		contains(t, refusal(t, s, s.BinaryCommand("server", "--data-dir=/var/lib/full"), true), "/var/lib/full", "full disk", "64 MiB")
		if left := contents(t, s.Path("/var/lib/full")); len(left) > 0 {
			t.Errorf("files were made: %v", left)
		}
	})
	t.Run("disk too small", func(t *testing.T) {
		mount(t, s, "/var/lib/small", "size=100m")
		contains(t, refusal(t, s, s.BinaryCommand("server", "--data-dir=/var/lib/small"), true), "/var/lib/small", "100 MiB free", "512 MiB", "--data-dir")
	})
	t.Run("data directory noexec", func(t *testing.T) {
		mount(t, s, "/var/lib/noexec", "noexec")
		contains(t, refusal(t, s, s.BinaryCommand("server", "--data-dir=/var/lib/noexec"), true), "/var/lib/noexec", "noexec", "--data-dir")
	})
	t.Run("data directory in use", func(t *testing.T) {
		path := s.Path("/var/lib/held")
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		lock, err := os.OpenFile(path+"/lock", os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		fmt.Fprintln(lock, os.Getpid())
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		contains(t, refusal(t, s, s.BinaryCommand("server", "--data-dir=/var/lib/held"), true),
			"/var/lib/held", fmt.Sprintf("in use by process %d", os.Getpid()), "--data-dir")
		if got := contents(t, path); len(got) != 1 {
			t.Errorf("files were made: %v", got)
		}
	})
	t.Run("data directory of a newer version", func(t *testing.T) {
		path := s.Path("/var/lib/newer")
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+"/version", []byte("99\nkubelith v9.9.9\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		before := contents(t, path)
		contains(t, refusal(t, s, s.BinaryCommand("server", "--data-dir=/var/lib/newer"), true), "/var/lib/newer", "format 99", "v9.9.9", "newer")
		untouched(t, before, contents(t, path))
	})
	t.Run("version file damaged", func(t *testing.T) {
		path := s.Path("/var/lib/noversion")
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+"/version", []byte("one\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		before := contents(t, path)
		contains(t, refusal(t, s, s.BinaryCommand("server", "--data-dir=/var/lib/noversion"), true), "/var/lib/noversion/version", "damaged", `"one"`)
		untouched(t, before, contents(t, path))
	})
	t.Run("kernel without overlay", func(t *testing.T) {
		// The file systems of the kernel as the server sees them, less overlay.
		fake := s.Path("/var/lib/filesystems")
		if err := os.WriteFile(fake, []byte("nodev\ttmpfs\n\text4\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		s.Exec(t, "mount", "--bind", "/var/lib/filesystems", "/proc/filesystems")
		defer s.Exec(t, "umount", "/proc/filesystems")
		if content, _ := os.ReadFile(s.Path("/proc/filesystems")); strings.Contains(string(content), "overlay") {
			t.Skip("/proc/filesystems cannot be replaced here; host/preflight has unit tests for it")
		}
		contains(t, refusal(t, s, s.BinaryCommand("server", "--data-dir=/var/lib/nooverlay"), true), "overlayfs", "modprobe overlay")
	})
}

// mount puts a tmpfs into the sandbox for the time of the test.
func mount(t *testing.T, s *harness.Server, dir, options string) {
	t.Helper()
	if err := os.MkdirAll(s.Path(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, "mount", "-t", "tmpfs", "-o", options, "tmpfs", dir)
	t.Cleanup(func() { s.Exec(t, "umount", dir) })
}
