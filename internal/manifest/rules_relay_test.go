package manifest

// relayRules are cases for the relay.
func relayRules() map[string]rule {
	const (
		outbox   = "spec.outbox."
		duration = "must be a duration such as 500ms, 30s or 1h30m"
		ident    = "must be one identifier: letters, digits and _, not beginning with a digit"
		lease    = "spec.lease.duration: lease.duration must be longer than batch.publishTimeout plus 5s: else another relay may take over while a publish is still under way"
		replicas = "spec.replicas: replicas must not exceed outbox.shards: each shard has one owner, further replicas would idle"
		pool     = "spec.replicas: replicas times source.postgres.maxConnections must not exceed 1000 connections: lower one of them"
	)
	return map[string]rule{
		"a relay may pause":              {set: map[string]any{"spec.runPolicy": "Pause"}},
		"a relay may drain":              {set: map[string]any{"spec.runPolicy": "Drain"}},
		"another run policy is refused":  {set: map[string]any{"spec.runPolicy": "x"}, refuse: []string{`spec.runPolicy: must be one of "Run", "Pause", "Drain", not "x"`}},
		"a bool is no run policy":        {set: map[string]any{"spec.runPolicy": true}, refuse: []string{"spec.runPolicy: must be of type string, not boolean", `spec.runPolicy: must be one of "Run", "Pause", "Drain", not "true"`}},
		"a source is required":           {set: map[string]any{"spec.source": nil}, refuse: []string{"spec.source: must be set"}},
		"a destination is required":      {set: map[string]any{"spec.destination": nil}, refuse: []string{"spec.destination: must be set"}},
		"a table may have capitals":      {set: map[string]any{outbox + "table": "Outbox_2"}},
		"a table of 40 bytes":            {set: map[string]any{outbox + "table": long(40)}},
		"a table of 41 bytes is refused": {set: map[string]any{outbox + "table": long(41)}, refuse: []string{outbox + "table: must not be longer than 40 bytes"}},
		"a table with a statement":       {set: map[string]any{outbox + "table": "outbox; drop table x"}, refuse: []string{outbox + "table: " + ident}},
		"a qualified table is refused":   {set: map[string]any{outbox + "table": "public.outbox"}, refuse: []string{outbox + "table: " + ident}},
		"64 shards are accepted":         {set: map[string]any{outbox + "shards": 64}},
		"65 shards are refused":          {set: map[string]any{outbox + "shards": 65}, refuse: []string{outbox + "shards: must be at most 64"}},
		"no shard is refused":            {set: map[string]any{outbox + "shards": 0}, refuse: []string{outbox + "shards: must be at least 1"}},
		"shards given as they are now":   {update: true, set: map[string]any{outbox + "shards": 8, "spec.batch.maxMessages": 7}},
		"shards cannot change": {update: true, set: map[string]any{outbox + "shards": 16}, refuse: []string{
			outbox + "shards: shards cannot change: keys would move between shards and lose their order; make a new table and a new relay",
		}},
		"a day of the archive is accepted":     {set: map[string]any{outbox + "publishedRetention": "24h"}},
		"a second of the archive is refused":   {set: map[string]any{outbox + "publishedRetention": "1s"}, refuse: []string{outbox + "publishedRetention: must be 1m to 87600h"}},
		"no order is a mode":                   {set: map[string]any{"spec.ordering.mode": "None"}},
		"a global order is none":               {set: map[string]any{"spec.ordering.mode": "x"}, refuse: []string{`spec.ordering.mode: must be one of "PerKey", "None", not "x"`}},
		"a lease just above the bound":         {set: map[string]any{"spec.lease.duration": "15s1ms"}},
		"a lease at the bound is refused":      {set: map[string]any{"spec.lease.duration": "15s"}, refuse: []string{lease}},
		"a long publish needs a long lease":    {set: map[string]any{"spec.batch.publishTimeout": "30s"}, refuse: []string{lease}},
		"a short lease with a short publish":   {set: map[string]any{"spec.lease.duration": "6s", "spec.batch.publishTimeout": "500ms"}},
		"a lease of 5s is refused":             {set: map[string]any{"spec.lease.duration": "5s", "spec.batch.publishTimeout": "100ms"}, refuse: []string{"spec.lease.duration: must be 6s to 1h", lease}},
		"a lease of two hours is refused":      {set: map[string]any{"spec.lease.duration": "2h"}, refuse: []string{"spec.lease.duration: must be 6s to 1h"}},
		"a number is no duration":              {set: map[string]any{"spec.lease.duration": 30}, refuse: []string{"spec.lease.duration: must be of type string, not integer"}},
		"a number without unit is no duration": {set: map[string]any{"spec.lease.duration": "30"}, refuse: []string{"spec.lease.duration: " + duration}},
		"days are no unit":                     {set: map[string]any{outbox + "publishedRetention": "7d"}, refuse: []string{outbox + "publishedRetention: " + duration}},
		"fractions are no duration":            {set: map[string]any{"spec.batch.pollInterval": "1.5s"}, refuse: []string{"spec.batch.pollInterval: " + duration}},
		"several units are one duration":       {set: map[string]any{outbox + "publishedRetention": "1h30m10s500ms"}},
		"10000 messages are accepted":          {set: map[string]any{"spec.batch.maxMessages": 10000}},
		"10001 messages are refused":           {set: map[string]any{"spec.batch.maxMessages": 10001}, refuse: []string{"spec.batch.maxMessages: must be at most 10000"}},
		"no message is refused":                {set: map[string]any{"spec.batch.maxMessages": 0}, refuse: []string{"spec.batch.maxMessages: must be at least 1"}},
		"bytes may be a number":                {set: map[string]any{"spec.batch.maxBytes": 1048576}},
		"64Mi of bytes are accepted":           {set: map[string]any{"spec.batch.maxBytes": "64Mi"}},
		"65Mi of bytes are refused":            {set: map[string]any{"spec.batch.maxBytes": "65Mi"}, refuse: []string{"spec.batch.maxBytes: must be 1Ki to 64Mi"}},
		"1023 bytes are refused":               {set: map[string]any{"spec.batch.maxBytes": 1023}, refuse: []string{"spec.batch.maxBytes: must be 1Ki to 64Mi"}},
		"a text is no quantity":                {set: map[string]any{"spec.batch.maxBytes": "4MB"}, refuse: []string{"spec.batch.maxBytes: must be a quantity such as 512Ki, 4Mi or 0.5"}},
		"a poll every 10ms is accepted":        {set: map[string]any{"spec.batch.pollInterval": "10ms"}},
		"a poll every 1ms is refused":          {set: map[string]any{"spec.batch.pollInterval": "1ms"}, refuse: []string{"spec.batch.pollInterval: must be 10ms to 1m"}},
		"a publish timeout of 99ms is refused": {set: map[string]any{"spec.batch.publishTimeout": "99ms"}, refuse: []string{"spec.batch.publishTimeout: must be 100ms to 10m"}},
		"a publish timeout of 100ms":           {set: map[string]any{"spec.batch.publishTimeout": "100ms"}},
		"equal bounds of the backoff":          {set: map[string]any{"spec.retryBudget": map[string]any{"initialBackoff": "2m"}}},
		"a backoff that starts above its end": {set: map[string]any{"spec.retryBudget.initialBackoff": "3m"}, refuse: []string{
			"spec.retryBudget.initialBackoff: initialBackoff must not be longer than maxBackoff",
		}},
		"a backoff of 9ms is refused":           {set: map[string]any{"spec.retryBudget.initialBackoff": "9ms"}, refuse: []string{"spec.retryBudget.initialBackoff: must be 10ms to 24h"}},
		"a backoff of 25h is refused":           {set: map[string]any{"spec.retryBudget.maxBackoff": "25h"}, refuse: []string{"spec.retryBudget.maxBackoff: must be 10ms to 24h"}},
		"attempts are not counted yet":          {set: map[string]any{"spec.retryBudget.maxAttempts": 3}, refuse: []string{"spec.retryBudget.maxAttempts: is not a known field"}},
		"as many replicas as shards":            {set: map[string]any{"spec.replicas": 8}},
		"no replicas":                           {set: map[string]any{"spec.replicas": 0}},
		"more replicas than shards are refused": {set: map[string]any{"spec.replicas": 9}, refuse: []string{replicas}},
		"65 replicas are refused":               {set: map[string]any{"spec.replicas": 65}, refuse: []string{"spec.replicas: must be at most 64", replicas}},
		"a negative number of replicas":         {set: map[string]any{"spec.replicas": -1}, refuse: []string{"spec.replicas: must be at least 0"}},
		"1000 connections in all":               {set: map[string]any{"spec.replicas": 5, pg + "maxConnections": 200}},
		"1200 connections in all are refused":   {set: map[string]any{"spec.replicas": 6, pg + "maxConnections": 200}, refuse: []string{pool}},
		"a status every 5s":                     {set: map[string]any{"spec.statusInterval": "5s"}},
		"a status every second is refused":      {set: map[string]any{"spec.statusInterval": "1s"}, refuse: []string{"spec.statusInterval: must be 5s to 1h"}},
	}
}

// workloadRules are cases for the workload.
func workloadRules() map[string]rule {
	const (
		labels   = "spec.workload.labels"
		mine     = "keys of kubernetes.io, k8s.io and postrider.dev are the operator's: use a prefix of your own"
		resource = "must name only cpu, memory and ephemeral-storage"
	)
	toleration := map[string]any{"key": "a", "operator": "Exists"}
	spread := func(key string) map[string]any {
		return map[string]any{"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}
	}
	many := func(n int, one any) []any {
		out := make([]any, n)
		for i := range out {
			out[i] = one
		}
		return out
	}
	secrets := make([]any, 0, 17)
	for _, name := range numbered(17, "pull%") {
		secrets = append(secrets, map[string]any{"name": name})
	}
	selector := make(map[string]any)
	for _, key := range numbered(33, "key%") {
		selector[key] = "x"
	}
	return map[string]rule{
		"all that a workload may say": {set: map[string]any{"spec.workload": map[string]any{
			"resources":                 map[string]any{"requests": map[string]any{"cpu": "100m", "memory": "64Mi"}, "limits": map[string]any{"ephemeral-storage": "1Gi"}},
			"nodeSelector":              map[string]any{"disk": "ssd"},
			"tolerations":               []any{toleration},
			"affinity":                  map[string]any{"nodeAffinity": map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": map[string]any{"nodeSelectorTerms": []any{map[string]any{"matchExpressions": []any{map[string]any{"key": "a", "operator": "Exists"}}}}}}},
			"topologySpreadConstraints": []any{spread("zone"), spread("host")},
			"priorityClassName":         "high",
			"labels":                    map[string]any{"team": "shop", "example.com/cost": "a.b_c"},
			"imagePullSecrets":          []any{map[string]any{"name": "pull"}},
		}}},
		"a consumer has the same workload":  {kind: "InboxConsumer", set: map[string]any{"spec.workload.labels": map[string]any{"team": "shop"}}},
		"a GPU cannot be asked for":         {set: map[string]any{"spec.workload.resources.limits": map[string]any{"nvidia.com/gpu": "1"}}, refuse: []string{"spec.workload.resources.limits: " + resource}},
		"requests name the same three":      {set: map[string]any{"spec.workload.resources.requests": map[string]any{"pods": "1"}}, refuse: []string{"spec.workload.resources.requests: " + resource}},
		"a request must be a quantity":      {set: map[string]any{"spec.workload.resources.requests": map[string]any{"cpu": "much"}}, refuse: []string{"spec.workload.resources.requests.cpu: must be a quantity such as 512Ki, 4Mi or 0.5"}},
		"a label of Kubernetes is refused":  {set: map[string]any{labels: map[string]any{"app.kubernetes.io/name": "x"}}, refuse: []string{labels + ": " + mine}},
		"a label of ours is refused":        {set: map[string]any{labels: map[string]any{"postrider.dev/x": "x"}}, refuse: []string{labels + ": " + mine}},
		"a like-sounding prefix is free":    {set: map[string]any{labels: map[string]any{"notpostrider.dev/x": "x"}}},
		"a key with a space is no label":    {set: map[string]any{labels: map[string]any{"a b": "x"}}, refuse: []string{labels + ": each key must be a label name, such as team or example.com/team"}},
		"a value with a space is no label":  {set: map[string]any{labels: map[string]any{"a": "x y"}}, refuse: []string{labels + "[a]: must be a label value: letters, digits, - _ and ., with a letter or digit at both ends"}},
		"32 node labels are the most":       {set: map[string]any{"spec.workload.nodeSelector": selector}, refuse: []string{"spec.workload.nodeSelector: must not have more than 32 items"}},
		"32 tolerations are the most":       {set: map[string]any{"spec.workload.tolerations": many(33, toleration)}, refuse: []string{"spec.workload.tolerations: must not have more than 32 items"}},
		"a spread constraint stands once":   {set: map[string]any{"spec.workload.topologySpreadConstraints": many(2, spread("zone"))}, refuse: []string{"spec.workload.topologySpreadConstraints[1]: is listed twice"}},
		"a priority class has a plain name": {set: map[string]any{"spec.workload.priorityClassName": "High class"}, refuse: []string{"spec.workload.priorityClassName: must be the name of a PriorityClass"}},
		"a service account is not chosen":   {set: map[string]any{"spec.workload.serviceAccountName": "x"}, refuse: []string{"spec.workload.serviceAccountName: is not a known field"}},
		"16 pull Secrets are the most":      {set: map[string]any{"spec.workload.imagePullSecrets": secrets}, refuse: []string{"spec.workload.imagePullSecrets: must not have more than 16 items"}},
		"a pull Secret's name is a name":    {set: map[string]any{"spec.workload.imagePullSecrets": []any{map[string]any{"name": "A"}}}, refuse: []string{"spec.workload.imagePullSecrets[0].name: must be the name of a Secret in this namespace: lower case letters, digits, - and ."}},
	}
}
