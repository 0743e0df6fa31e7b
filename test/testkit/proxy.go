package testkit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Direction is which way bytes flow through a Proxy.
type Direction int

// The directions.
const (
	ToServer Direction = iota
	ToClient
	Both
)

func (d Direction) covers(one Direction) bool { return d == Both || d == one }

const (
	proxyBufferBytes = 32 << 10
	proxyQueue       = 64 // chunks under way in one direction of a connection
	relistenTimeout  = 10 * time.Second
)

// Faulty is a TCP proxy in front of a real server that can spoil the network between client and server. The faults
// hold for the connections that exist and for new ones, until the next call.
type Faulty struct {
	// Host and Port are where clients connect.
	Host string
	Port int

	t        testing.TB
	upstream string
	wg       sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change of the fields below
	ln      net.Listener
	delay   time.Duration
	swallow [2]bool // by direction
	frozen  bool
	conns   map[*link]struct{}
	lost    *lostAnswer
	over    bool

	taken [2]atomic.Int64 // bytes, by direction
}

// lostAnswer is an armed LoseAnswer.
type lostAnswer struct {
	marker   []byte
	happened chan struct{}
}

// link is one connection of a client and its counterpart to the server.
type link struct {
	client, server *net.TCPConn
	ended          context.Context //nolint:containedctx // the life of the connection
	end            context.CancelFunc

	mu      sync.Mutex
	damaged bool        // bytes are missing: the stream must not go on
	lose    *lostAnswer // the next bytes to the client are lost, and then the connection
}

// Proxy starts a proxy to the server at upstream (host:port). It ends with the test.
func Proxy(t testing.TB, upstream string) *Faulty {
	t.Helper()
	var config net.ListenConfig
	ln, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listening for the proxy: %v", err)
	}
	host, portText, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatalf("reading the proxy's address: %v", err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		t.Fatalf("reading the proxy's port: %v", err)
	}
	p := &Faulty{
		Host: host, Port: port, t: t, upstream: upstream, ln: ln,
		changed: make(chan struct{}), conns: make(map[*link]struct{}),
	}
	p.wg.Go(func() { p.accept(ln) })
	t.Cleanup(p.close)
	return p
}

// Addr is where clients connect.
func (p *Faulty) Addr() string { return net.JoinHostPort(p.Host, strconv.Itoa(p.Port)) }

// Delay holds every byte back for d in each direction, without making the connection narrower.
func (p *Faulty) Delay(d time.Duration) {
	p.change(func() { p.delay = d })
}

// Cut resets all connections and refuses new ones.
func (p *Faulty) Cut() {
	p.change(func() {
		p.closeListener()
		p.resetAll(func(*link) bool { return true })
	})
}

// Reset resets all connections; new ones are served.
func (p *Faulty) Reset() {
	p.change(func() { p.resetAll(func(*link) bool { return true }) })
}

// Swallow takes every byte that flows in the direction, also of new connections, and passes none on. Nobody is told.
func (p *Faulty) Swallow(d Direction) {
	p.change(func() {
		p.swallow[ToServer] = d.covers(ToServer)
		p.swallow[ToClient] = d.covers(ToClient)
	})
}

// HalfOpen keeps all sockets open and moves nothing, not even the end of a connection: as if the cable were pulled.
// New connections are taken and stay silent.
func (p *Faulty) HalfOpen() {
	p.change(func() { p.frozen = true })
}

// Resume ends all faults. Connections that have lost bytes are reset; the others go on with what was held back.
func (p *Faulty) Resume() {
	p.t.Helper()
	var err error
	p.change(func() {
		p.delay, p.swallow, p.frozen, p.lost = 0, [2]bool{}, false, nil
		p.resetAll(func(l *link) bool { return l.isDamaged() })
		if p.ln == nil && !p.over {
			err = p.relisten()
		}
	})
	if err != nil {
		p.t.Fatalf("listening again on the proxy's port: %v", err)
	}
}

// LoseAnswer waits for the next bytes to the server that contain the marker, passes them on, and then, when the server
// has begun to answer, drops the answer and resets that connection: the server has done it, the client cannot know.
// The returned channel is closed when that has happened. The marker has to arrive in one piece, so it should be short.
func (p *Faulty) LoseAnswer(marker string) <-chan struct{} {
	lost := &lostAnswer{marker: []byte(marker), happened: make(chan struct{})}
	p.change(func() { p.lost = lost })
	return lost.happened
}

// Connections is the number of open connections.
func (p *Faulty) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Taken is the number of bytes that were to flow in a direction so far, passed on or not.
func (p *Faulty) Taken(d Direction) int64 { return p.taken[d].Load() }

// change makes a change and wakes what waits for one.
func (p *Faulty) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Faulty) close() {
	p.change(func() {
		p.over = true
		p.frozen = false
		p.closeListener()
		p.resetAll(func(*link) bool { return true })
	})
	p.wg.Wait()
}

func (p *Faulty) closeListener() {
	if p.ln != nil {
		_ = p.ln.Close()
		p.ln = nil
	}
}

func (p *Faulty) resetAll(which func(*link) bool) {
	for l := range p.conns {
		if which(l) {
			l.reset()
			delete(p.conns, l)
		}
	}
}

// relisten takes the port again. Another process may hold it for a moment.
func (p *Faulty) relisten() error {
	ctx, cancel := context.WithTimeout(p.t.Context(), relistenTimeout)
	defer cancel()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for {
		var config net.ListenConfig
		ln, err := config.Listen(ctx, "tcp", p.Addr())
		if err == nil {
			p.ln = ln
			p.wg.Go(func() { p.accept(ln) })
			return nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return err
		}
	}
}

func (p *Faulty) accept(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return // closed
		}
		client, ok := conn.(*net.TCPConn)
		if !ok {
			_ = conn.Close()
			continue
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

// serve connects to the server and moves bytes until one side ends.
func (p *Faulty) serve(client *net.TCPConn) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(context.WithoutCancel(p.t.Context()), "tcp", p.upstream)
	server, ok := conn.(*net.TCPConn)
	if err != nil || !ok {
		_ = client.SetLinger(0)
		_ = client.Close()
		return
	}
	l := &link{client: client, server: server}
	l.ended, l.end = context.WithCancel(context.Background())
	p.mu.Lock()
	if p.ln == nil { // cut meanwhile
		p.mu.Unlock()
		l.reset()
		return
	}
	p.conns[l] = struct{}{}
	p.mu.Unlock()

	var both sync.WaitGroup
	both.Go(func() { p.pump(l, ToServer) })
	both.Go(func() { p.pump(l, ToClient) })
	both.Wait()
	l.close()
	p.mu.Lock()
	delete(p.conns, l)
	p.mu.Unlock()
}

// chunk is a piece of a stream; due fires when it may be passed on. An empty one is the stream's end.
type chunk struct {
	bytes []byte
	due   <-chan time.Time
}

// pump moves one direction of a connection: one goroutine reads and stamps, this one passes on when it is time.
func (p *Faulty) pump(l *link, d Direction) {
	from, to := l.client, l.server
	if d == ToClient {
		from, to = l.server, l.client
	}
	queue := make(chan chunk, proxyQueue)
	p.wg.Go(func() {
		defer close(queue)
		p.read(l, d, from, queue)
	})
	for c := range queue {
		if c.due != nil {
			select {
			case <-c.due:
			case <-l.ended.Done():
				return
			}
		}
		if !p.thawed(l) {
			return
		}
		if len(c.bytes) == 0 {
			_ = to.CloseWrite()
			return
		}
		if !p.pass(l, d, to, c.bytes) {
			l.end()
			return
		}
	}
}

// read puts what arrives into the queue, with the time it is due, and last an empty chunk when the peer has ended.
func (p *Faulty) read(l *link, d Direction, from net.Conn, queue chan<- chunk) {
	for {
		buffer := make([]byte, proxyBufferBytes)
		n, err := from.Read(buffer)
		if err != nil && !errors.Is(err, io.EOF) {
			// A reset, by the peer or by us.
			if p.thawed(l) {
				l.reset()
			}
			return
		}
		p.taken[d].Add(int64(n))
		c := chunk{bytes: buffer[:n]}
		p.mu.Lock()
		delay := p.delay
		p.mu.Unlock()
		if delay > 0 {
			c.due = time.After(delay)
		}
		select {
		case queue <- c:
		case <-l.ended.Done():
			return
		}
		if n == 0 || err != nil {
			return
		}
	}
}

// thawed waits until nothing is half open and reports whether the connection still lives.
func (p *Faulty) thawed(l *link) bool {
	for {
		p.mu.Lock()
		frozen, changed := p.frozen, p.changed
		p.mu.Unlock()
		if !frozen {
			return l.ended.Err() == nil
		}
		select {
		case <-changed:
		case <-l.ended.Done():
			return false
		}
	}
}

// pass hands bytes on, or not, and reports whether the connection goes on.
func (p *Faulty) pass(l *link, d Direction, to io.Writer, bytesRead []byte) bool {
	p.mu.Lock()
	swallow := p.swallow[d]
	if d == ToServer && p.lost != nil && bytes.Contains(bytesRead, p.lost.marker) {
		l.loseNext(p.lost)
		p.lost = nil
	}
	p.mu.Unlock()
	if d == ToClient {
		if lost := l.losesNext(); lost != nil {
			l.reset()
			close(lost.happened)
			return false
		}
	}
	if swallow {
		l.damage()
		return true
	}
	_, err := to.Write(bytesRead)
	return err == nil
}

func (l *link) loseNext(lost *lostAnswer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lose = lost
}

func (l *link) losesNext() *lostAnswer {
	l.mu.Lock()
	defer l.mu.Unlock()
	lost := l.lose
	l.lose = nil
	return lost
}

func (l *link) damage() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.damaged = true
}

func (l *link) isDamaged() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.damaged
}

// reset ends both sides with a RST: what was not read is lost.
func (l *link) reset() {
	_ = l.client.SetLinger(0)
	_ = l.server.SetLinger(0)
	l.close()
}

func (l *link) close() {
	l.end()
	_ = l.client.Close()
	_ = l.server.Close()
}
