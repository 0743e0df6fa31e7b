package pipeline

import (
	"context"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/mapped"
)

// teamTable looks at the outbox of a team's own; nil where the outbox is ours.
func teamTable(ctx context.Context, q mapped.Querier, names postgres.Names, cfg config.Relay) (*mapped.Table, error) {
	if cfg.Outbox.Columns == nil {
		return nil, nil //nolint:nilnil // there is none, and that is no error
	}
	table, err := mapped.Read(ctx, q, mapped.Table{
		Names: names, Map: *cfg.Outbox.Columns, Unordered: cfg.Ordering == config.OrderingNone,
		Shards: int(cfg.Outbox.Shards),
	})
	if err != nil {
		return nil, databaseTrouble(err)
	}
	return table, nil
}
