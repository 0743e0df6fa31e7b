package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/bench"
	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/internal/broker/nats"
	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/message"
)

const (
	stream  = "BENCH"
	subject = "bench.events"
	// outstanding bounds what the bare client has sent and not confirmed: as many as nine lanes of a relay have.
	outstanding = 4096
)

// openNATS starts a NATS with a stream on disk.
func openNATS(ctx context.Context) (*bench.Destination, func(context.Context) error, error) {
	server, err := local.StartNATS(ctx, local.NATSConfig{})
	if err != nil {
		return nil, nil, err
	}
	address := net.JoinHostPort(server.Host(), strconv.Itoa(server.Port()))
	bare, err := natsgo.Connect(address)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("connect: %w", err), server.Stop(ctx))
	}
	abandon := func(err error) (*bench.Destination, func(context.Context) error, error) {
		bare.Close()
		return nil, nil, errors.Join(err, server.Stop(ctx))
	}
	js, err := jetstream.New(bare, jetstream.WithPublishAsyncMaxPending(outstanding))
	if err != nil {
		return abandon(fmt.Errorf("use JetStream: %w", err))
	}
	conn, err := nats.Dial(ctx, nats.Config{
		Servers: []string{
			address,
		},
		Stream:   stream,
		Topology: nats.Verify,
		TLS:      endpoint.TLS{Mode: endpoint.Insecure},
		Name:     "bench",
	})
	if err != nil {
		return abandon(err)
	}
	publisher, err := nats.NewPublisher(conn, nats.PublisherConfig{Subject: subject})
	if err != nil {
		return abandon(errors.Join(err, conn.Close(ctx)))
	}
	end := func(ctx context.Context) error {
		bare.Close()
		return errors.Join(conn.Close(ctx), server.Stop(ctx))
	}
	return &bench.Destination{
		Name: "JetStream", Publisher: publisher,
		Produce: func(ctx context.Context, messages []message.Message) error { return produceNATS(ctx, js, messages) },
		Empty:   func(ctx context.Context) error { return emptyNATS(ctx, js) },
	}, end, nil
}

func produceNATS(ctx context.Context, js jetstream.JetStream, messages []message.Message) error {
	answers := make([]jetstream.PubAckFuture, len(messages))
	for i := range messages {
		record, err := message.Encode(&messages[i])
		if err != nil {
			return fmt.Errorf("encode: %w", err)
		}
		msg := &natsgo.Msg{Subject: subject, Data: record.Body, Header: make(natsgo.Header)}
		for _, h := range record.Headers {
			msg.Header[h.Name] = []string{h.Value}
		}
		if answers[i], err = js.PublishMsgAsync(msg, jetstream.WithMsgID(messages[i].ID.String())); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	for _, a := range answers {
		select {
		case <-a.Ok():
		case err := <-a.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// emptyNATS makes the stream anew.
func emptyNATS(ctx context.Context, js jetstream.JetStream) error {
	if err := js.DeleteStream(ctx, stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("delete the stream: %w", err)
	}
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: stream, Subjects: []string{"bench.>"}, Storage: jetstream.FileStorage,
	})
	if err != nil {
		return fmt.Errorf("make the stream: %w", err)
	}
	return nil
}
