package main

import (
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"
)

// What a client of sink wants is the first byte that it sends.
const (
	swallow = 's' // read to the end, then answer how many bytes came
	reflect = 'r' // send each byte back
)

// sink is the other side of throughput and latency.
func sink(args []string) error {
	flags := flag.NewFlagSet("sink", flag.ExitOnError)
	addr := flags.String("addr", ":9100", "address to listen on")
	flags.Parse(args)
	l, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	fmt.Println("sink on", *addr)
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			serveSink(conn)
		}()
	}
}

func serveSink(conn net.Conn) error {
	buf := make([]byte, 1<<20)
	if _, err := io.ReadFull(conn, buf[:1]); err != nil {
		return err
	}
	if buf[0] == reflect {
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return err
			}
			if _, err := conn.Write(buf[:n]); err != nil {
				return err
			}
		}
	}
	var total uint64
	for {
		n, err := conn.Read(buf)
		total += uint64(n)
		if err == io.EOF {
			return binary.Write(conn, binary.BigEndian, total)
		}
		if err != nil {
			return err
		}
	}
}

// throughput sends for a while through one TCP connection and prints {"bitsPerSecond": N}: what the other side has
// received, by the time from the first byte to its answer.
func throughput(args []string) error {
	flags := flag.NewFlagSet("throughput", flag.ExitOnError)
	during := flags.Duration("time", 5*time.Second, "how long to send")
	flags.Parse(args)
	conn, err := dialSink(flags, swallow)
	if err != nil {
		return err
	}
	defer conn.Close()
	block := make([]byte, 128<<10)
	began := time.Now()
	for time.Since(began) < *during {
		if _, err := conn.Write(block); err != nil {
			return err
		}
	}
	if err := conn.CloseWrite(); err != nil {
		return err
	}
	var received uint64
	if err := binary.Read(conn, binary.BigEndian, &received); err != nil {
		return err
	}
	seconds := time.Since(began).Seconds()
	return json.NewEncoder(os.Stdout).Encode(map[string]float64{"bitsPerSecond": float64(received) * 8 / seconds})
}

// latency sends round trips of one byte through one TCP connection and prints {"medianMicroseconds": N,
// "p99Microseconds": N}. With --connect each round trip has its own connection, whose set-up counts.
func latency(args []string) error {
	flags := flag.NewFlagSet("latency", flag.ExitOnError)
	count := flags.Int("count", 10000, "round trips")
	connect := flags.Bool("connect", false, "a new connection each time")
	flags.Parse(args)
	var conn *net.TCPConn
	buf := make([]byte, 1)
	var times []float64
	for i := range *count {
		began := time.Now()
		if i == 0 || *connect {
			var err error
			if conn, err = dialSink(flags, reflect); err != nil {
				return err
			}
		}
		if !*connect {
			began = time.Now()
		}
		if _, err := conn.Write(buf); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, buf); err != nil {
			return err
		}
		times = append(times, float64(time.Since(began).Nanoseconds())/1e3)
		if *connect || i == *count-1 {
			conn.Close()
		}
	}
	slices.Sort(times)
	return json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"medianMicroseconds": times[len(times)/2], "p99Microseconds": times[len(times)*99/100],
	})
}

func dialSink(flags *flag.FlagSet, want byte) (*net.TCPConn, error) {
	if flags.NArg() != 1 {
		return nil, fmt.Errorf("%s: want one IP:port", flags.Name())
	}
	conn, err := net.DialTimeout("tcp", flags.Arg(0), 10*time.Second)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write([]byte{want}); err != nil {
		conn.Close()
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}
