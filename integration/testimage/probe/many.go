package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// many opens TCP connections to `probe echo`, holds them until all are there, then sends through each and waits for the
// answer. It prints how many each server has answered.
func many(args []string) error {
	flags := flag.NewFlagSet("many", flag.ExitOnError)
	count := flags.Int("count", 1000, "connections")
	timeout := flags.Duration("timeout", 30*time.Second, "for each of the two steps")
	flags.Parse(args)
	if flags.NArg() != 1 {
		return fmt.Errorf("many: want one IP:port")
	}
	conns := make([]net.Conn, *count)
	err := each(*count, func(i int) (err error) {
		conns[i], err = net.DialTimeout("tcp", flags.Arg(0), *timeout)
		return err
	})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	answered := map[string]int{}
	err = each(*count, func(i int) error {
		conns[i].SetDeadline(time.Now().Add(*timeout))
		host, err := echoed(conns[i], fmt.Appendf(nil, "message %d", i))
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		answered[host]++
		return nil
	})
	if err != nil {
		return err
	}
	for _, host := range slices.Sorted(maps.Keys(answered)) {
		fmt.Println(host, answered[host])
	}
	return nil
}

// each calls f for 0 to n-1, up to 100 at once.
func each(n int, f func(i int) error) error {
	errs := make([]error, n)
	slots := make(chan struct{}, 100)
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = f(i)
			<-slots
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// echoed sends a message to `probe echo` and returns the name of the host that answered.
func echoed(conn net.Conn, message []byte) (host string, err error) {
	if _, err := conn.Write(message); err != nil {
		return "", err
	}
	buf := make([]byte, 64<<10)
	n, err := conn.Read(buf)
	if err != nil {
		return "", err
	}
	before, back, _ := strings.Cut(string(buf[:n]), ": ")
	if back != string(message) {
		return "", fmt.Errorf("%d bytes came back otherwise: %.100q", len(message), buf[:n])
	}
	host, _, _ = strings.Cut(before, " ")
	return host, nil
}

// mtu sends a datagram that fills eth0's MTU to `probe echo` and waits for it to come back; neither may be fragmented
// on its way (IPv4). One byte more must be refused by the kernel. It prints the MTU.
func mtu(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("mtu: want one IP:port")
	}
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var refused error
		err := c.Control(func(fd uintptr) {
			refused = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_PMTUDISC_DO)
		})
		return errors.Join(err, refused)
	}}
	conn, err := dialer.Dial("udp4", args[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	const headers = 20 + 8 // IPv4 and UDP
	full := []byte("=" + strings.Repeat("abcdefghij", link.MTU)[:link.MTU-headers-1])
	back := make([]byte, 64<<10)
	for try := 0; ; try++ { // a datagram may be lost
		conn.SetDeadline(time.Now().Add(2 * time.Second))
		if _, err := conn.Write(full); err != nil {
			return fmt.Errorf("%d bytes: %w", len(full), err)
		}
		n, err := conn.Read(back)
		if err == nil && bytes.Equal(back[:n], full) {
			break
		}
		if try == 3 {
			return fmt.Errorf("%d bytes came back as %d: %v", len(full), n, err)
		}
	}
	if _, err := conn.Write(append(full, '.')); !errors.Is(err, syscall.EMSGSIZE) {
		return fmt.Errorf("%d bytes are not too large: %v", len(full)+1, err)
	}
	fmt.Println(link.MTU)
	return nil
}
