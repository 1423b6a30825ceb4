package tunnel

import (
	"context"
	"net"
	"runtime"
	"testing"
)

// BenchmarkIdle measures the memory of a tunnel without connections, of both ends together and without their TLS.
func BenchmarkIdle(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	used := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error)
	before := used()
	var sessions []*Session
	for range b.N {
		go func() {
			c, err := net.Dial("tcp", l.Addr().String())
			if err == nil {
				err = Serve(ctx, c, everything)
			}
			ended <- err
		}()
		c, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		s, err := Open(b.Context(), c)
		if err != nil {
			b.Fatal(err)
		}
		sessions = append(sessions, s)
	}
	b.ReportMetric(float64(used()-before)/float64(b.N), "B/tunnel")
	cancel()
	for range b.N {
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}
	for _, s := range sessions {
		s.Close()
	}
}

// BenchmarkThroughput sends 64 KiB at a time to a program that sends them back, through a tunnel.
func BenchmarkThroughput(b *testing.B) {
	far := make(chan net.Conn, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() {
		for range 2 {
			if c, err := l.Accept(); err == nil {
				far <- c
			}
		}
	}()
	ctx, cancel := context.WithCancel(b.Context())
	node, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- Serve(ctx, node, everything) }()
	s, err := Open(b.Context(), <-far)
	if err != nil {
		b.Fatal(err)
	}
	c, err := s.Dial(b.Context(), l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	back := <-far
	go echo(back)
	block, got := make([]byte, 64<<10), make([]byte, 64<<10)
	b.SetBytes(int64(len(block)))
	for b.Loop() {
		if _, err := c.Write(block); err != nil {
			b.Fatal(err)
		}
		for n := 0; n < len(got); {
			m, err := c.Read(got[n:])
			if err != nil {
				b.Fatal(err)
			}
			n += m
		}
	}
	c.Close()
	s.Close()
	cancel()
	<-ended
	back.Close()
}
