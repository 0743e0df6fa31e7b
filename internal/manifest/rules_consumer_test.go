package manifest

import (
	"maps"
	"strings"
)

// consumerRules are cases for the consumer.
func consumerRules() map[string]rule {
	const (
		routes    = "spec.handler.sql.routes"
		name      = "spec.consumerName: must be letters, digits and -, in parts joined by /, such as shop/billing"
		order     = "spec.ordering: with nats, ordering.mode PerKey needs ordering.versions Enforce or ordering.delivery SingleActive: redeliveries come out of order; or choose mode None"
		retention = "spec.inbox.retention: retention must be at least replayHorizon: a message replayed after its inbox row is gone would be applied again"
		batch     = "spec.concurrency.maxBatchMessages: maxBatchMessages must not exceed prefetch: a batch cannot hold more than was received"
		once      = routes + ": each event type or prefix must be listed by one route only"
		eventType = ": must be an event type such as order.paid, a prefix such as order.*, or *"
		statement = ": must be one SQL statement, without NUL"
	)
	route := func(statement string, types ...string) map[string]any {
		return map[string]any{"eventTypes": types, "statement": statement}
	}
	many := func(n int) []any {
		out := make([]any, n)
		for i, name := range numbered(n, "t%") {
			out[i] = route("SELECT 1", name)
		}
		return out
	}
	cases := map[string]rule{
		"a consumer may pause":                {set: map[string]any{"spec.runPolicy": "Pause"}},
		"another run policy is refused":       {set: map[string]any{"spec.runPolicy": "x"}, refuse: []string{`spec.runPolicy: must be one of "Run", "Pause", "Drain", not "x"`}},
		"a consumer's name has parts":         {set: map[string]any{"spec.consumerName": "A1/b-2/c"}},
		"a consumer's name is required":       {set: map[string]any{"spec.consumerName": nil}, refuse: []string{"spec.consumerName: must be set"}},
		"a name with _ is refused":            {set: map[string]any{"spec.consumerName": "shop_billing"}, refuse: []string{name}},
		"a name with an empty part":           {set: map[string]any{"spec.consumerName": "shop//billing"}, refuse: []string{name}},
		"a name with a space is refused":      {set: map[string]any{"spec.consumerName": "a b"}, refuse: []string{name}},
		"a name has at most 128 bytes":        {set: map[string]any{"spec.consumerName": long(129)}, refuse: []string{"spec.consumerName: must not be longer than 128 bytes"}},
		"a consumer keeps its name":           {update: true, set: map[string]any{"spec.replicas": 3}},
		"a consumer's name cannot change":     {update: true, set: map[string]any{"spec.consumerName": "shop/other"}, refuse: []string{"spec.consumerName: consumerName cannot change: everything in the stream would be applied again; make a new consumer"}},
		"a source is required":                {set: map[string]any{"spec.source": nil}, refuse: []string{"spec.source: must be set"}},
		"an inbox is required":                {set: map[string]any{"spec.inbox": nil}, refuse: []string{"spec.inbox: must be set"}},
		"a handler is required":               {set: map[string]any{"spec.handler": nil}, refuse: []string{"spec.handler: must be set"}},
		"exactly one handler is needed":       {set: map[string]any{"spec.handler": map[string]any{}}, refuse: []string{"spec.handler: exactly one of the fields in [sql] must be set"}},
		"the horizon may reach the retention": {set: map[string]any{"spec.inbox.replayHorizon": "720h"}},
		"a horizon beyond the retention":      {set: map[string]any{"spec.inbox.replayHorizon": "721h"}, refuse: []string{retention}},
		"a retention below the horizon":       {set: map[string]any{"spec.inbox.retention": "1h"}, refuse: []string{retention}},
		"a retention of 59s is refused":       {set: map[string]any{"spec.inbox.retention": "59s", "spec.inbox.replayHorizon": "0s"}, refuse: []string{"spec.inbox.retention: must be 1m to 87600h"}},

		"order needs no versions if a single one is active": {set: map[string]any{"spec.ordering": map[string]any{"versions": "Unchecked", "delivery": "SingleActive"}}},
		"order without versions is refused":                 {set: map[string]any{"spec.ordering.versions": "Unchecked"}, refuse: []string{order}},
		"order by newer versions only is refused":           {set: map[string]any{"spec.ordering.versions": "IgnoreOlder"}, refuse: []string{order}},
		"no order needs neither":                            {set: map[string]any{"spec.ordering": map[string]any{"mode": "None", "versions": "Unchecked"}}},
		"no order with the default versions":                {set: map[string]any{"spec.ordering.mode": "None"}},
		"another mode is refused":                           {set: map[string]any{"spec.ordering.mode": "x"}, refuse: []string{`spec.ordering.mode: must be one of "PerKey", "None", not "x"`}},
		"another version policy is refused":                 {set: map[string]any{"spec.ordering.versions": "x"}, refuse: []string{`spec.ordering.versions: must be one of "Enforce", "IgnoreOlder", "Unchecked", not "x"`}},
		"another delivery is refused":                       {set: map[string]any{"spec.ordering.delivery": "x"}, refuse: []string{`spec.ordering.delivery: must be one of "Shared", "SingleActive", not "x"`}},
		"a gap may be passed":                               {set: map[string]any{"spec.ordering": map[string]any{"gapTimeout": "1s", "onGapTimeout": "Apply"}}},
		"a gap timeout of 999ms is refused":                 {set: map[string]any{"spec.ordering.gapTimeout": "999ms"}, refuse: []string{"spec.ordering.gapTimeout: must be 1s to 87600h"}},
		"another gap policy is refused":                     {set: map[string]any{"spec.ordering.onGapTimeout": "x"}, refuse: []string{`spec.ordering.onGapTimeout: must be one of "Hold", "Apply", not "x"`}},

		"64 routes are accepted":              {set: map[string]any{routes: many(64)}},
		"65 routes are refused":               {set: map[string]any{routes: many(65)}, refuse: []string{routes + ": must not have more than 64 items"}},
		"no route is refused":                 {set: map[string]any{routes: []any{}}, refuse: []string{routes + ": must have at least 1 entries"}},
		"an exact type beside its prefix":     {set: map[string]any{routes: []any{route("SELECT 1", "order.paid"), route("SELECT 2", "order.*"), route("SELECT 3", "*")}}},
		"a type in two routes is refused":     {set: map[string]any{routes: []any{route("SELECT 1", "a", "b"), route("SELECT 2", "b")}}, refuse: []string{once}},
		"a type twice in a route is refused":  {set: map[string]any{routes: []any{route("SELECT 1", "a", "a")}}, refuse: []string{routes + "[0].eventTypes[1]: is listed twice"}},
		"a route without types is refused":    {set: map[string]any{routes: []any{route("SELECT 1")}}, refuse: []string{routes + "[0].eventTypes: must be set"}},
		"routes are required":                 {set: map[string]any{routes: nil}, refuse: []string{routes + ": must be set"}},
		"an empty list of types is refused":   {set: map[string]any{routes: []any{map[string]any{"statement": "SELECT 1", "eventTypes": []string{}}}}, refuse: []string{routes + "[0].eventTypes: must have at least 1 entries"}},
		"17 types of a route are refused":     {set: map[string]any{routes: []any{route("SELECT 1", numbered(17, "t%")...)}}, refuse: []string{routes + "[0].eventTypes: must not have more than 16 items"}},
		"a wildcard in a type is refused":     {set: map[string]any{routes: []any{route("SELECT 1", "order.*.x")}}, refuse: []string{routes + "[0].eventTypes[0]" + eventType}},
		"a wildcard without a dot is refused": {set: map[string]any{routes: []any{route("SELECT 1", "order*")}}, refuse: []string{routes + "[0].eventTypes[0]" + eventType}},
		"a space in a type is refused":        {set: map[string]any{routes: []any{route("SELECT 1", "a b")}}, refuse: []string{routes + "[0].eventTypes[0]" + eventType}},
		"a type has at most 128 bytes":        {set: map[string]any{routes: []any{route("SELECT 1", long(129))}}, refuse: []string{routes + "[0].eventTypes[0]: must not be longer than 128 bytes"}},
		"a statement of spaces is refused":    {set: map[string]any{routes: []any{route(" \n", "a")}}, refuse: []string{routes + "[0].statement" + statement}},
		"a statement with NUL is refused":     {set: map[string]any{routes: []any{route("SELECT '\x00'", "a")}}, refuse: []string{routes + "[0].statement" + statement}},
		"a statement has many lines":          {set: map[string]any{routes: []any{route("SELECT\n\t1", "a")}}},
		"a statement has at most 8192":        {set: map[string]any{routes: []any{route(strings.Repeat("x", 8193), "a")}}, refuse: []string{routes + "[0].statement: must not be longer than 8192 bytes"}},
		"a statement is required":             {set: map[string]any{routes: []any{map[string]any{"eventTypes": []string{"a"}}}}, refuse: []string{routes + "[0].statement: must be set"}},
		"unmatched may be dead letters":       {set: map[string]any{"spec.handler.sql.onUnmatched": "DeadLetter"}},
		"another unmatched policy is refused": {set: map[string]any{"spec.handler.sql.onUnmatched": "x"}, refuse: []string{`spec.handler.sql.onUnmatched: must be one of "Ignore", "DeadLetter", not "x"`}},

		"a message of 64Mi is accepted":         {set: map[string]any{"spec.validation.maxBytes": "64Mi"}},
		"a message of 65Mi is refused":          {set: map[string]any{"spec.validation.maxBytes": "65Mi"}, refuse: []string{"spec.validation.maxBytes: must be 1 to 64Mi"}},
		"a message of 0 bytes is refused":       {set: map[string]any{"spec.validation.maxBytes": 0}, refuse: []string{"spec.validation.maxBytes: must be 1 to 64Mi"}},
		"a depth of 1000 is accepted":           {set: map[string]any{"spec.validation.maxDepth": 1000}},
		"a depth of 1001 is refused":            {set: map[string]any{"spec.validation.maxDepth": 1001}, refuse: []string{"spec.validation.maxDepth: must be at most 1000"}},
		"a depth of 0 is refused":               {set: map[string]any{"spec.validation.maxDepth": 0}, refuse: []string{"spec.validation.maxDepth: must be at least 1"}},
		"256 lanes are accepted":                {set: map[string]any{"spec.concurrency.lanes": 256}},
		"257 lanes are refused":                 {set: map[string]any{"spec.concurrency.lanes": 257}, refuse: []string{"spec.concurrency.lanes: must be at most 256"}},
		"no lane is refused":                    {set: map[string]any{"spec.concurrency.lanes": 0}, refuse: []string{"spec.concurrency.lanes: must be at least 1"}},
		"a prefetch of 100001 is refused":       {set: map[string]any{"spec.concurrency.prefetch": 100001}, refuse: []string{"spec.concurrency.prefetch: must be at most 100000"}},
		"a prefetch of 0 is refused":            {set: map[string]any{"spec.concurrency": map[string]any{"prefetch": 0, "maxBatchMessages": 1}}, refuse: []string{"spec.concurrency.prefetch: must be at least 1", batch}},
		"a batch may be the whole prefetch":     {set: map[string]any{"spec.concurrency": map[string]any{"prefetch": 200}}},
		"a batch above the prefetch is refused": {set: map[string]any{"spec.concurrency": map[string]any{"prefetch": 199}}, refuse: []string{batch}},
		"a batch of 10001 is refused":           {set: map[string]any{"spec.concurrency": map[string]any{"prefetch": 20000, "maxBatchMessages": 10001}}, refuse: []string{"spec.concurrency.maxBatchMessages: must be at most 10000"}},
		"a batch of 0 is refused":               {set: map[string]any{"spec.concurrency.maxBatchMessages": 0}, refuse: []string{"spec.concurrency.maxBatchMessages: must be at least 1"}},
		"a handler timeout of 99ms is refused":  {set: map[string]any{"spec.concurrency.handlerTimeout": "99ms"}, refuse: []string{"spec.concurrency.handlerTimeout: must be 100ms to 1h"}},
		"a backoff that starts above its end":   {set: map[string]any{"spec.retryBudget": map[string]any{"initialBackoff": "2s", "maxBackoff": "1s"}}, refuse: []string{"spec.retryBudget.initialBackoff: initialBackoff must not be longer than maxBackoff"}},
		"100 replicas are accepted":             {set: map[string]any{"spec.replicas": 100}},
		"101 replicas are refused":              {set: map[string]any{"spec.replicas": 101}, refuse: []string{"spec.replicas: must be at most 100"}},
		"1010 connections in all are refused": {set: map[string]any{"spec.replicas": 10, "spec.inbox.postgres.maxConnections": 101}, refuse: []string{
			"spec.replicas: replicas times inbox.postgres.maxConnections must not exceed 1000 connections: lower one of them",
		}},
		"a status every second is refused": {set: map[string]any{"spec.statusInterval": "1s"}, refuse: []string{"spec.statusInterval: must be 5s to 1h"}},
	}
	for name, tc := range maps.All(cases) {
		tc.kind = "InboxConsumer"
		cases[name] = tc
	}
	return cases
}
