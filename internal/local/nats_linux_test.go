package local_test

import (
	"os"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/local"
)

// lostWithin waits until a server is lost.
func lostWithin(t *testing.T, lost <-chan struct{}, patience time.Duration) {
	t.Helper()
	select {
	case <-lost:
	case <-time.After(patience):
		t.Fatalf("the server was not lost within %s", patience)
	}
}

func TestAsRootNATSGoesOnAfterAFullDisk(t *testing.T) {
	t.Parallel()
	dir := tmpfs(t, "size=64m")
	server, err := local.StartNATS(t.Context(), local.NATSConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { // before the file system goes
		if err := server.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	open := func() (*natsgo.Conn, jetstream.JetStream) {
		conn, err := natsgo.Connect(server.URL())
		if err != nil {
			t.Fatal(err)
		}
		js, err := jetstream.New(conn)
		if err != nil {
			t.Fatal(err)
		}
		return conn, js
	}
	conn, js := open()
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	if err != nil {
		t.Fatal(err)
	}
	const stored = 10
	payload := make([]byte, 1<<10)
	for range stored {
		if _, err := js.Publish(t.Context(), "s", payload); err != nil {
			t.Fatal(err)
		}
	}
	filler := fill(t, dir)
	for range 100 { // some may still fit
		if err := conn.Publish("s", payload); err != nil {
			t.Fatal(err)
		}
	}
	lostWithin(t, server.Lost(), 30*time.Second)
	conn.Close()
	mustBeDiskFull(t, server.Err(), dir)

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := server.Err(); err != nil {
		t.Errorf("a server that runs again is still lost: %v", err)
	}
	conn, js = open()
	defer conn.Close()
	if _, err := js.Publish(t.Context(), "s", payload); err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	if got := s.CachedInfo().State.Msgs; got < stored+1 {
		t.Errorf("%d messages are left of %d that were confirmed", got, stored+1)
	}
}
