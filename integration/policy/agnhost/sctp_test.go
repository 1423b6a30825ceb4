package main

import "testing"

func TestPackets(t *testing.T) {
	for _, p := range []packet{
		{from: 40000, to: 9003, chunk: initChunk, own: 7},
		{from: 9003, to: 40000, chunk: initAck, tag: 7, own: 8, cookie: 7},
		{from: 40000, to: 9003, chunk: cookieEcho, tag: 8, cookie: 7},
		{from: 9003, to: 40000, chunk: cookieAck, tag: 7},
	} {
		b := p.bytes()
		if got, ok := parse(b); !ok || got != p {
			t.Errorf("%+v comes back as %+v, %t", p, got, ok)
		}
		if _, ok := parse(b[:len(b)-5]); ok {
			t.Errorf("a part of %+v is a packet", p)
		}
	}
}
