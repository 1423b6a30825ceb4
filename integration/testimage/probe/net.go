package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"sort"
	"strings"
	"time"
)

// echo answers every datagram and every TCP chunk with "HOSTNAME REMOTE: " and what came. A datagram that begins with
// "=" comes back as it is, so that the answer is as large.
func echo(args []string) error {
	flags := flag.NewFlagSet("echo", flag.ExitOnError)
	addr := flags.String("addr", ":9000", "address to listen on, TCP and UDP")
	flags.Parse(args)
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	udp, err := net.ListenPacket("udp", *addr)
	if err != nil {
		return err
	}
	tcp, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	fmt.Println("echoing on", *addr)
	failed := make(chan error, 2)
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				failed <- err
				return
			}
			answer := buf[:n]
			if !bytes.HasPrefix(answer, []byte("=")) {
				answer = fmt.Appendf(nil, "%s %s: %s", hostname, from, answer)
			}
			udp.WriteTo(answer, from)
		}
	}()
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				failed <- err
				return
			}
			go func() {
				defer conn.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := conn.Read(buf)
					if err != nil {
						return
					}
					fmt.Fprintf(conn, "%s %s: %s", hostname, conn.RemoteAddr(), buf[:n])
				}
			}()
		}
	}()
	return <-failed
}

// lookup asks the resolvers of /etc/resolv.conf, with its search list, or the given server.
func lookup(args []string) error {
	flags := flag.NewFlagSet("lookup", flag.ExitOnError)
	server := flags.String("server", "", "IP:port to ask instead of /etc/resolv.conf's")
	timeout := flags.Duration("timeout", 5*time.Second, "for the whole look-up")
	flags.Parse(args)
	if flags.NArg() != 2 {
		return fmt.Errorf("lookup: want TYPE NAME")
	}
	kind, name := strings.ToUpper(flags.Arg(0)), flags.Arg(1)
	resolver := &net.Resolver{PreferGo: true}
	if *server != "" {
		resolver.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, *server)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	answers, err := answers(ctx, resolver, kind, name)
	if err != nil {
		return err
	}
	sort.Strings(answers)
	for _, a := range answers {
		fmt.Println(a)
	}
	return nil
}

func answers(ctx context.Context, r *net.Resolver, kind, name string) ([]string, error) {
	switch kind {
	case "A", "AAAA":
		network := map[string]string{"A": "ip4", "AAAA": "ip6"}[kind]
		ips, err := r.LookupIP(ctx, network, name)
		var out []string
		for _, ip := range ips {
			out = append(out, ip.String())
		}
		return out, err
	case "SRV":
		_, records, err := r.LookupSRV(ctx, "", "", name)
		var out []string
		for _, s := range records {
			out = append(out, fmt.Sprintf("%s:%d", s.Target, s.Port))
		}
		return out, err
	case "PTR":
		return r.LookupAddr(ctx, name)
	case "TXT":
		return r.LookupTXT(ctx, name)
	case "CNAME":
		cname, err := r.LookupCNAME(ctx, name)
		return []string{cname}, err
	}
	return nil, fmt.Errorf("lookup: type %s is not A, AAAA, SRV, PTR, TXT or CNAME", kind)
}
