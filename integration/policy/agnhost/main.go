// Command agnhost does what the conformance suite of network-policy-api has upstream's program of this name do: it
// answers on ports, and connects to them. It implements SCTP's handshake itself, so that a kernel without SCTP can be
// tested, too.
//
// As /bin/bash it runs itself with the words of a command: the pods need no shell. As /worker it is that of cyclonus,
// and opens all connections of a batch at once.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	args := os.Args
	if filepath.Base(args[0]) == "bash" && len(args) == 3 {
		args = strings.Fields(args[2])
	}
	if filepath.Base(args[0]) == "worker" && len(args) == 3 {
		args = []string{args[0], "worker", args[2]}
	}
	if len(args) < 2 {
		args = []string{args[0], "pause"}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx, args[1], args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, command string, args []string) error {
	f := flag.NewFlagSet(command, flag.ExitOnError)
	tcp, udp := f.Bool("tcp", false, "answer on TCP"), f.Bool("udp", false, "answer on UDP")
	port, udpPort, at := f.Int("port", 0, "port"), f.Int("udp-port", 0, "port of UDP"), f.String("udp-listen-addresses", "", "address of UDP")
	f.Bool("http", true, "ignored")
	f.Int("http-port", 0, "ignored")
	timeout, protocol := f.Duration("timeout", 0, "of a connection"), f.String("protocol", "tcp", "of a connection")
	f.Parse(args)
	to := f.Arg(0)
	if f.NArg() > 1 { // flags may stand behind the destination
		f.Parse(f.Args()[1:])
	}
	failed := make(chan error, 3)
	switch command {
	case "pause":
	case "connect":
		return connect(*protocol, to, *timeout)
	case "worker":
		return work(to)
	case "serve-hostname":
		if *tcp {
			go func() { failed <- serveTCP(*port) }()
		}
		if *udp {
			go func() { failed <- serveUDP("", *port) }()
		}
	case "netexec":
		go func() { failed <- serveUDP(*at, *udpPort) }()
	case "porter":
		for _, v := range os.Environ() {
			var port uint16
			if n, _ := fmt.Sscanf(v, "SERVE_SCTP_PORT_%d=", &port); n == 1 {
				go func() { failed <- serveSCTP(port) }()
			}
		}
	default:
		return fmt.Errorf("unknown command %q", command)
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

func serveTCP(port int) error {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		conn.Close()
	}
}

func serveUDP(address string, port int) error {
	conn, err := net.ListenPacket("udp", net.JoinHostPort(address, fmt.Sprint(port)))
	if err != nil {
		return err
	}
	buf := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err == nil {
			_, err = conn.WriteTo(buf[:n], from)
		}
		if err != nil && !errors.Is(err, syscall.EPERM) {
			return err
		}
	}
}

// connect returns what upstream's prints: nothing when it works, otherwise how it failed.
func connect(protocol, address string, timeout time.Duration) error {
	err := dial(protocol, address, timeout)
	var late interface{ Timeout() bool }
	switch {
	case err == nil:
		return nil
	case errors.As(err, &late) && late.Timeout():
		return errors.New("TIMEOUT")
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("REFUSED")
	}
	return fmt.Errorf("OTHER: %w", err)
}

func dial(protocol, address string, timeout time.Duration) error {
	if protocol == "sctp" {
		return dialSCTP(address, timeout)
	}
	conn, err := net.DialTimeout(protocol, address, timeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	if protocol != "udp" {
		return nil
	}
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "hostname\n"); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1500))
	return err
}
