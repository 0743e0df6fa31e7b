package desired

import (
	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/config"
)

// columns returns how the columns of a team's own table are named: as the preset says, but for what is named itself. It
// is nil for a table of our own.
func columns(o *v1alpha1.Outbox) *config.Columns {
	if o.Layout != v1alpha1.LayoutStatusColumns {
		return nil
	}
	out, _ := config.Preset(string(o.Preset))
	c := o.Columns
	if c == nil {
		return &out
	}
	name(&out.ID, c.ID)
	name(&out.OrderingKey, c.OrderingKey)
	name(&out.Version, c.Version)
	name(&out.EventType, c.EventType)
	name(&out.Destination, c.Destination)
	name(&out.Payload, c.Payload)
	name(&out.Headers, c.Headers)
	name(&out.ContentType, c.ContentType)
	name(&out.Traceparent, c.Traceparent)
	name(&out.OccurredAt, c.OccurredAt)
	name(&out.Status, c.Status)
	name(&out.AvailableAt, c.AvailableAt)
	name(&out.Attempts, c.Attempts)
	name(&out.PublishedAt, c.PublishedAt)
	name(&out.LastError, c.LastError)
	if v := c.Values; v != nil {
		out.Values = config.StatusValues{
			Pending: string(v.Pending), Published: string(v.Published),
			Waiting: string(v.Waiting), Failed: string(v.Failed),
		}
	}
	if out.Status == "" {
		out.Values = config.StatusValues{}
	}
	return &out
}

// name takes a column's name over where one is given.
func name[T ~string](column *string, given *T) {
	if given != nil {
		*column = string(*given)
	}
}
