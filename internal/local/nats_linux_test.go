package local_test

import (
	"errors"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/test/testkit"
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

// openStreams opens JetStream of a server.
func openStreams(t *testing.T, server *local.NATS) (*natsgo.Conn, jetstream.JetStream) {
	t.Helper()
	conn, err := natsgo.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return conn, js
}

func TestAsRootNATSGoesOnAfterAFullDisk(t *testing.T) {
	t.Parallel()
	dir := testkit.Disk(t, "size=64m")
	server, err := local.StartNATS(t.Context(), local.NATSConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { // before the file system goes
		if err := server.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	conn, js := openStreams(t, server)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	if err != nil {
		t.Fatal(err)
	}
	const stored = 10
	payload := make([]byte, 1<<10)
	publish := func(js jetstream.JetStream) {
		t.Helper()
		if _, err := js.Publish(t.Context(), "s", payload); err != nil {
			t.Fatal(err)
		}
	}
	for range stored {
		publish(js)
	}
	free := testkit.Fill(t, dir)
	for range 100 { // some may still fit
		_ = conn.Publish("s", payload) // nobody answers
	}
	lostWithin(t, server.Lost(), 30*time.Second)
	mustBeDiskFull(t, server.Err(), dir)

	free()
	if err := errors.Join(server.Start(t.Context()), server.Err()); err != nil {
		t.Fatal(err)
	}
	_, js = openStreams(t, server)
	publish(js)
	s, err := js.Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	if got := s.CachedInfo().State.Msgs; got < stored+1 {
		t.Errorf("%d messages are left of %d that were confirmed", got, stored+1)
	}
}
