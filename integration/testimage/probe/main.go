// Command probe is the program inside the integration tests' image: small servers, clients and
// misbehaviours whose effects can be observed. It uses the standard library only.
//
//	probe serve [--addr :8080]           HTTP: / says who asked and who answered; see http.go
//	probe echo [--addr :9000]            TCP and UDP echo, each answer prefixed with the hostname
//	probe sleep [--on-term DURATION]     waits for SIGTERM, prints that, exits DURATION later with 0
//	probe eat MiB                        allocates and touches memory, then sleeps
//	probe exit CODE [AFTER]              ends with CODE after a duration
//	probe print [--every D] [--count N] TEXT   numbered lines
//	probe dial [--token] [--ca FILE] [--method M] URL    one request; prints status and body; exit 1 unless 2xx
//	probe lookup [--server IP:53] TYPE NAME    A, AAAA, SRV, PTR, CNAME, TXT; one answer a line
//	probe many [--count N] IP:PORT       that many TCP connections to echo at once; who answered how many
//	probe mtu IP:PORT                    a datagram as large as eth0's MTU to echo; prints the MTU
//	probe sink [--addr :9100]            the other side of the next two
//	probe throughput [--time D] IP:PORT  one TCP connection; JSON
//	probe latency [--count N] [--connect] IP:PORT   round trips of one byte; JSON
//	probe webhook --cert F --key F [--addr :8443]        admission webhooks; see webhook.go
//	probe aggregated --cert F --key F --group G [--addr :8443]  an aggregated API server; see aggregated.go
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("probe: no subcommand"))
	}
	commands := map[string]func(args []string) error{
		"serve": serve, "echo": echo, "sleep": sleep, "eat": eat, "exit": exit, "print": printLines,
		"dial": dial, "lookup": lookup, "webhook": webhook, "aggregated": aggregated,
		"many": many, "mtu": mtu, "sink": sink, "throughput": throughput, "latency": latency,
	}
	command, ok := commands[os.Args[1]]
	if !ok {
		fail(fmt.Errorf("probe: no subcommand %q", os.Args[1]))
	}
	if err := command(os.Args[2:]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
