package main

import (
	"encoding/json"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// request and result are those of a worker of cyclonus.
type request struct {
	Key, Protocol, Host string
	Port                int
}

type result struct {
	Request *request
	Error   string
}

// tries is how often a connection is made until it works: a packet of UDP can get lost.
const tries = 2

// work opens the connections of a batch and prints what became of them.
func work(batch string) error {
	var jobs struct{ Requests []*request }
	if err := json.Unmarshal([]byte(batch), &jobs); err != nil {
		return err
	}
	results := make([]result, len(jobs.Requests))
	var all sync.WaitGroup
	for i, r := range jobs.Requests {
		all.Go(func() {
			results[i].Request = r
			for range tries {
				err := connect(strings.ToLower(r.Protocol), net.JoinHostPort(r.Host, strconv.Itoa(r.Port)), time.Second)
				if err == nil {
					results[i].Error = ""
					return
				}
				results[i].Error = err.Error()
			}
		})
	}
	all.Wait()
	return json.NewEncoder(os.Stdout).Encode(results)
}
