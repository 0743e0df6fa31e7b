package outbox_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/outbox"
)

// A payment and the message that tells of it are committed together or not at all.
func ExampleWriter_Write() {
	writer, err := outbox.New(outbox.Config{Source: "shop"})
	if err != nil {
		panic(err)
	}
	pay := func(ctx context.Context, pool *pgxpool.Pool, order string, body []byte) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "UPDATE orders SET state = 'paid' WHERE id = $1", order); err != nil {
				return err
			}
			_, err := writer.Write(ctx, tx, outbox.Message{Type: "order.paid", OrderingKey: order, Payload: body})
			return err
		})
	}
	_ = pay
}

// Messages that come up in several places of a transaction are written once, before the commit.
func ExampleCollector() {
	writer, err := outbox.New(outbox.Config{Source: "shop"})
	if err != nil {
		panic(err)
	}
	messages := writer.Collect()
	if _, err := messages.Add(
		outbox.Message{Type: "order.paid", OrderingKey: "order-42", Payload: []byte("{}")},
	); err != nil {
		panic(err)
	}
	_, err = messages.Add(outbox.Message{Type: "order.paid", Payload: []byte("{}")})
	var refused *outbox.FieldError
	fmt.Println(errors.As(err, &refused), err)
	fmt.Println(messages.Len(), "message waits for Flush")
	// Output:
	// true outbox: message 1: ordering_key is empty; say Unordered for a message without a key
	// 1 message waits for Flush
}
