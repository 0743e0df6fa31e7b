package config_test

import (
	"testing"

	"github.com/postrider/postrider/internal/config"
)

func TestAMappingOfATeamsTableIsChecked(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		preset   string
		ordering string
		change   func(*config.Columns)
		ok       bool
	}{
		"the classic table": {config.PresetPostrider, config.OrderingPerKey, nil, true},
		"Debezium's outbox, which has no versions": {
			config.PresetDebeziumOutbox, config.OrderingNone, nil, true,
		},
		"no order without a version": {config.PresetDebeziumOutbox, config.OrderingPerKey, nil, false},
		"Open Outbox":                {config.PresetOpenOutbox, config.OrderingNone, nil, true},
		"no status for dead letters": {
			config.PresetPostrider, config.OrderingPerKey, func(c *config.Columns) { c.Values.Failed = "" }, true,
		},
		"dead letters that look published": {
			config.PresetPostrider,
			config.OrderingPerKey,
			func(c *config.Columns) { c.Values.Failed = "published" },
			false,
		},
		"dead letters that look as if they waited": {
			config.PresetPostrider, config.OrderingPerKey,
			func(c *config.Columns) { c.Values.Waiting, c.Values.Failed = "dead", "dead" },
			false,
		},
		"values of a status that there is not": {
			config.PresetDebeziumOutbox,
			config.OrderingNone,
			func(c *config.Columns) { c.Values.Failed = "dead" },
			false,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := config.Preset(tc.preset)
			if tc.change != nil {
				tc.change(&c)
			}
			if err := c.Validate(tc.ordering); (err == nil) != tc.ok {
				t.Errorf("Validate() = %v", err)
			}
		})
	}
}
