package testkit_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/test/testkit"
)

// soon bounds what must happen; silence is how long nothing may happen.
const (
	soon    = 10 * time.Second
	silence = 100 * time.Millisecond
)

// echo starts a server that answers each line with itself.
func echo(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close() //nolint:errcheck // the client decides
				lines := bufio.NewReader(conn)
				for {
					line, err := lines.ReadString('\n')
					if err != nil {
						return
					}
					if _, err := conn.Write([]byte(line)); err != nil {
						return
					}
				}
			}()
		}
	}()
	return ln.Addr().String()
}

// client is a connection through the proxy to the echo server.
type client struct {
	net.Conn

	lines *bufio.Reader
}

func dial(t *testing.T, p *testkit.Faulty) client {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return client{Conn: conn, lines: bufio.NewReader(conn)}
}

// say sends a line and returns what comes back within the time.
func (c client) say(line string, within time.Duration) (string, error) {
	if _, err := c.Write([]byte(line + "\n")); err != nil {
		return "", err
	}
	return c.hear(within)
}

func (c client) hear(within time.Duration) (string, error) {
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	return c.lines.ReadString('\n')
}

func mustEcho(t *testing.T, c client, line string) {
	t.Helper()
	if got, err := c.say(line, soon); err != nil || got != line+"\n" {
		t.Fatalf("say(%q) = %q, %v", line, got, err)
	}
}

func TestProxy(t *testing.T) {
	t.Parallel()
	cases := map[string]func(*testing.T, *testkit.Faulty){
		"without a fault bytes pass": func(t *testing.T, p *testkit.Faulty) {
			t.Helper()
			mustEcho(t, dial(t, p), "hello")
		},
		"a delay holds each way back and then passes all on": func(t *testing.T, p *testkit.Faulty) {
			t.Helper()
			c := dial(t, p)
			mustEcho(t, c, "hello")
			p.Delay(silence)
			start := time.Now()
			mustEcho(t, c, "slow")
			if took := time.Since(start); took < 2*silence {
				t.Errorf("the answer came after %s, want at least %s", took, 2*silence)
			}
		},
		"a cut resets connections and refuses new ones until resumed": func(t *testing.T, p *testkit.Faulty) {
			t.Helper()
			c := dial(t, p)
			mustEcho(t, c, "hello")
			p.Cut()
			if _, err := c.hear(soon); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("reading after the cut: %v, want a reset", err)
			}
			if _, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("connecting during the cut: %v, want a refusal", err)
			}
			p.Resume()
			mustEcho(t, dial(t, p), "again")
		},
		"a swallowed request is never answered and its connection is reset at the end": func(t *testing.T, p *testkit.Faulty) {
			t.Helper()
			c := dial(t, p)
			mustEcho(t, c, "hello")
			p.Swallow(testkit.ToServer)
			if got, err := c.say("lost", silence); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("say() = %q, %v, want a timeout", got, err)
			}
			p.Resume()
			if _, err := c.hear(soon); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("reading after the end: %v, want a reset", err)
			}
		},
		"answers are swallowed one way only": func(t *testing.T, p *testkit.Faulty) {
			t.Helper()
			c := dial(t, p)
			p.Swallow(testkit.ToClient)
			if got, err := c.say("lost", silence); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("say() = %q, %v, want a timeout", got, err)
			}
		},
		"a half open connection is silent and goes on without loss": func(t *testing.T, p *testkit.Faulty) {
			t.Helper()
			c := dial(t, p)
			mustEcho(t, c, "hello")
			p.HalfOpen()
			if got, err := c.say("held", silence); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("say() = %q, %v, want a timeout", got, err)
			}
			p.Resume()
			if got, err := c.hear(soon); err != nil || got != "held\n" {
				t.Errorf("after the end: %q, %v, want the answer held back", got, err)
			}
		},
		"a connection made while half open stays silent until resumed": func(t *testing.T, p *testkit.Faulty) {
			t.Helper()
			p.HalfOpen()
			c := dial(t, p)
			if got, err := c.say("held", silence); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("say() = %q, %v, want a timeout", got, err)
			}
			p.Resume()
			if got, err := c.hear(soon); err != nil || got != "held\n" {
				t.Errorf("after the end: %q, %v, want the answer held back", got, err)
			}
		},
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, testkit.Proxy(t, echo(t)))
		})
	}
}

func TestProxyHalfOpenHidesTheEndOfTheServer(t *testing.T) {
	t.Parallel()
	p := testkit.Proxy(t, echo(t))
	c := dial(t, p)
	mustEcho(t, c, "hello")
	p.HalfOpen()
	other := dial(t, p) // closed by its client: the server must not notice, nor the proxy end the first
	_ = other.Close()
	if got, err := c.hear(silence); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("hear() = %q, %v, want a timeout", got, err)
	}
	p.Resume()
	testkit.Eventually(t, soon, "the closed connection is gone", func() bool { return p.Connections() == 1 })
	mustEcho(t, c, "still here")
}

func TestProxyLosesTheAnswerToACommit(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec("CREATE TABLE effect (n int)")
	p := testkit.Proxy(t, db.Addr())
	conn, err := pgx.Connect(t.Context(), db.URLAt(p.Host, p.Port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // cut
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "INSERT INTO effect VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	lost := p.LoseAnswer("commit")
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("the client was told of the commit")
	}
	<-lost
	if got := testkit.Value[int](db, "SELECT count(*) FROM effect"); got != 1 {
		t.Errorf("%d rows, want 1: the server had committed", got)
	}
}
