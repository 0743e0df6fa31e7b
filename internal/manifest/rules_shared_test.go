package manifest

const (
	pg   = "spec.source.postgres."
	nats = "spec.destination.nats."
)

// nameRules are cases for names and unknown fields.
func nameRules() map[string]rule {
	const consumer = "InboxConsumer"
	tooLong := []string{"metadata.name: must be at most 54 characters, so that the names made from it fit"}
	return map[string]rule{
		"the least relay is accepted":                      {},
		"the least consumer is accepted":                   {kind: consumer},
		"a relay's name may have 54 characters":            {set: map[string]any{"metadata.name": long(54)}},
		"a relay's name of 55 characters is refused":       {set: map[string]any{"metadata.name": long(55)}, refuse: tooLong},
		"a consumer's name may have 54 characters":         {kind: consumer, set: map[string]any{"metadata.name": long(54)}},
		"a consumer's name of 55 characters is refused":    {kind: consumer, set: map[string]any{"metadata.name": long(55)}, refuse: tooLong},
		"a namespace in a reference is no field":           {set: map[string]any{pg + "credentialsSecretRef.namespace": "kube-system"}, refuse: []string{pg + "credentialsSecretRef.namespace: is not a known field"}},
		"an image cannot be chosen":                        {set: map[string]any{"spec.workload.image": "x"}, refuse: []string{"spec.workload.image: is not a known field"}},
		"a security context cannot be chosen":              {set: map[string]any{"spec.workload.securityContext": map[string]any{}}, refuse: []string{"spec.workload.securityContext: is not a known field"}},
		"shell and variables in a name are refused":        {set: map[string]any{pg + "database": "$(DB_PASSWORD);id"}, refuse: []string{pg + "database: must be a database name of letters, digits and _ . $ -, not a connection string"}},
		"spec is required":                                 {set: map[string]any{"spec": nil}, refuse: []string{"spec: must be set"}},
		"a field of a wrong type is named with both types": {set: map[string]any{"spec.batch.maxMessages": "many"}, refuse: []string{"spec.batch.maxMessages: must be of type integer, not string"}},
	}
}

// postgresRules are cases for the database block and the schema policies.
func postgresRules() map[string]rule {
	const (
		host     = "must be a host name or an IP address without scheme, port or spaces"
		database = "must be a database name of letters, digits and _ . $ -, not a connection string"
		ident    = "must be one identifier: letters, digits and _, not beginning with a digit"
		secret   = "must be the name of a Secret in this namespace: lower case letters, digits, - and ."
	)
	return map[string]rule{
		"hosts may be names and addresses": {set: map[string]any{pg + "hosts": []string{"db-1.shop.svc", "10.0.0.7", "fd00::7", "db_2", "a"}}},
		"a host with a scheme is refused":  {set: map[string]any{pg + "hosts": []string{"postgres://db"}}, refuse: []string{pg + "hosts[0]: " + host}},
		"a host with a port is refused":    {set: map[string]any{pg + "hosts": []string{"db", "db:5432"}}, refuse: []string{pg + "hosts[1]: " + host}},
		"a host with a space is refused":   {set: map[string]any{pg + "hosts": []string{"db passfile=/etc/passwd"}}, refuse: []string{pg + "hosts[0]: " + host}},
		"an empty host is refused":         {set: map[string]any{pg + "hosts": []string{""}}, refuse: []string{pg + "hosts[0]: must not be empty", pg + "hosts[0]: " + host}},
		"a host of 254 bytes is refused":   {set: map[string]any{pg + "hosts": []string{long(254)}}, refuse: []string{pg + "hosts[0]: must not be longer than 253 bytes"}},
		"five hosts are the most":          {set: map[string]any{pg + "hosts": numbered(6, "db%")}, refuse: []string{pg + "hosts: must not have more than 5 items"}},
		"one host is the least":            {set: map[string]any{pg + "hosts": []string{}}, refuse: []string{pg + "hosts: must have at least 1 entries"}},
		"hosts are required":               {set: map[string]any{pg + "hosts": nil}, refuse: []string{pg + "hosts: must be set"}},
		"a host is listed once":            {set: map[string]any{pg + "hosts": []string{"db", "db"}}, refuse: []string{pg + "hosts[1]: is listed twice"}},

		"port 65535 is accepted": {set: map[string]any{pg + "port": 65535}},
		"port 65536 is refused":  {set: map[string]any{pg + "port": 65536}, refuse: []string{pg + "port: must be at most 65535"}},
		"port 0 is refused":      {set: map[string]any{pg + "port": 0}, refuse: []string{pg + "port: must be at least 1"}},

		"a database name may have dots and dashes": {set: map[string]any{pg + "database": "orders-2.eu$x"}},
		"a connection string is no database":       {set: map[string]any{pg + "database": "orders sslmode=disable"}, refuse: []string{pg + "database: " + database}},
		"a URL is no database":                     {set: map[string]any{pg + "database": "orders?passfile=x"}, refuse: []string{pg + "database: " + database}},
		"a database name has at most 63 bytes":     {set: map[string]any{pg + "database": long(64)}, refuse: []string{pg + "database: must not be longer than 63 bytes"}},
		"a database is required":                   {set: map[string]any{pg + "database": nil}, refuse: []string{pg + "database: must be set"}},

		"a schema is one identifier":              {set: map[string]any{pg + "schema": "Orders_2"}},
		"a schema with a statement is refused":    {set: map[string]any{pg + "schema": "public; drop table x"}, refuse: []string{pg + "schema: " + ident}},
		"a schema with a dot is refused":          {set: map[string]any{pg + "schema": "a.b"}, refuse: []string{pg + "schema: " + ident}},
		"a schema has at most 63 bytes":           {set: map[string]any{pg + "schema": long(64)}, refuse: []string{pg + "schema: must not be longer than 63 bytes"}},
		"two connections are the least":           {set: map[string]any{pg + "maxConnections": 1}, refuse: []string{pg + "maxConnections: must be at least 2"}},
		"200 connections are accepted":            {set: map[string]any{pg + "maxConnections": 200}},
		"201 connections are refused":             {set: map[string]any{pg + "maxConnections": 201}, refuse: []string{pg + "maxConnections: must be at most 200"}},
		"credentials are required":                {set: map[string]any{pg + "credentialsSecretRef": nil}, refuse: []string{pg + "credentialsSecretRef: must be set"}},
		"a Secret's name may have dots":           {set: map[string]any{pg + "credentialsSecretRef.name": "orders.db-1"}},
		"a Secret's name has no capitals":         {set: map[string]any{pg + "credentialsSecretRef.name": "Orders"}, refuse: []string{pg + "credentialsSecretRef.name: " + secret}},
		"a path is no Secret's name":              {set: map[string]any{pg + "credentialsSecretRef.name": "../x"}, refuse: []string{pg + "credentialsSecretRef.name: " + secret}},
		"a reference without a name is refused":   {set: map[string]any{pg + "credentialsSecretRef": map[string]any{}}, refuse: []string{pg + "credentialsSecretRef.name: must be set"}},
		"the consumer's database keeps the rules": {kind: "InboxConsumer", set: map[string]any{"spec.inbox.postgres.hosts": []string{"db:1"}}, refuse: []string{"spec.inbox.postgres.hosts[0]: " + host}},
		"the consumer's database is required":     {kind: "InboxConsumer", set: map[string]any{"spec.inbox.postgres": nil}, refuse: []string{"spec.inbox.postgres: must be set"}},
		"the relay's database is required":        {set: map[string]any{"spec.source.postgres": nil}, refuse: []string{"spec.source.postgres: must be set"}},
		"an unset policy means Managed and an owner": {set: map[string]any{"spec.outbox": nil}, refuse: []string{
			"spec.outbox.migrationCredentialsSecretRef: schemaPolicy Managed needs migrationCredentialsSecretRef, the owner of the tables; or choose Verify and run postrider schema apply yourself",
		}},
		"Verify needs no owner": {set: map[string]any{"spec.outbox": map[string]any{"schemaPolicy": "Verify"}}},
		"Managed of an inbox needs an owner": {kind: "InboxConsumer", set: map[string]any{"spec.inbox.migrationCredentialsSecretRef": nil}, refuse: []string{
			"spec.inbox.migrationCredentialsSecretRef: schemaPolicy Managed needs migrationCredentialsSecretRef, the owner of the tables; or choose Verify and run postrider schema apply yourself",
		}},
		"Verify of an inbox needs no owner": {kind: "InboxConsumer", set: map[string]any{"spec.inbox.migrationCredentialsSecretRef": nil, "spec.inbox.schemaPolicy": "Verify"}},
		"another schema policy is refused":  {set: map[string]any{"spec.outbox.schemaPolicy": "x"}, refuse: []string{`spec.outbox.schemaPolicy: must be one of "Managed", "Verify", not "x"`}},
		"another policy of an inbox is refused": {kind: "InboxConsumer", set: map[string]any{"spec.inbox.schemaPolicy": "x"}, refuse: []string{
			`spec.inbox.schemaPolicy: must be one of "Managed", "Verify", not "x"`,
		}},
	}
}

// tlsRules are cases for the TLS block.
func tlsRules() map[string]rule {
	const (
		tls      = pg + "tls"
		insecure = ": mode Insecure sends plain text and uses no certificate: remove the certificate references, or choose VerifyFull"
		twoCAs   = ": at most one of the fields in [caSecretRef caConfigMapRef] may be set"
	)
	ref := map[string]any{"name": "x"}
	return map[string]rule{
		"VerifyCA with a Secret and a client certificate": {set: map[string]any{tls: map[string]any{"mode": "VerifyCA", "caSecretRef": ref, "clientCertificateSecretRef": ref}}},
		"a ConfigMap may hold the CA":                     {set: map[string]any{tls + ".caConfigMapRef": ref}},
		"two CAs are refused":                             {set: map[string]any{tls: map[string]any{"caSecretRef": ref, "caConfigMapRef": ref}}, refuse: []string{tls + twoCAs}},
		"Insecure alone is accepted":                      {set: map[string]any{tls + ".mode": "Insecure"}},
		"Insecure with a CA is refused":                   {set: map[string]any{tls: map[string]any{"mode": "Insecure", "caSecretRef": ref}}, refuse: []string{tls + insecure}},
		"Insecure with a CA in a ConfigMap is refused":    {set: map[string]any{tls: map[string]any{"mode": "Insecure", "caConfigMapRef": ref}}, refuse: []string{tls + insecure}},
		"Insecure with a client certificate is refused":   {set: map[string]any{tls: map[string]any{"mode": "Insecure", "clientCertificateSecretRef": ref}}, refuse: []string{tls + insecure}},
		"prefer is no mode":                               {set: map[string]any{tls + ".mode": "x"}, refuse: []string{tls + `.mode: must be one of "VerifyFull", "VerifyCA", "Insecure", not "x"`}},
		"a ConfigMap's name has no capitals":              {set: map[string]any{tls + ".caConfigMapRef.name": "X"}, refuse: []string{tls + ".caConfigMapRef.name: must be the name of a ConfigMap in this namespace: lower case letters, digits, - and ."}},
		"the broker's TLS keeps the rules":                {set: map[string]any{nats + "tls": map[string]any{"caSecretRef": ref, "caConfigMapRef": ref}}, refuse: []string{nats + "tls" + twoCAs}},
		"the consumer's TLS keeps the rules":              {kind: "InboxConsumer", set: map[string]any{"spec.source.nats.tls": map[string]any{"mode": "Insecure", "caSecretRef": ref}}, refuse: []string{"spec.source.nats.tls" + insecure}},
	}
}

// natsRules are cases for the NATS block.
func natsRules() map[string]rule {
	const (
		server  = "must be host or host:port, without scheme, credentials or spaces; an IPv6 address stands in brackets"
		subject = "must be one subject of letters, digits and _ / : = @ + -, in parts joined by dots, without wildcards and without $"
		pattern = "must be a subject whose parts may be * and whose last part may be >, such as orders.* or orders.>, without $"
		name    = "must be a name of letters, digits, _ and -"
		allowed = "spec.destination.allowed"
		filters = "spec.source.nats.filterSubjects"
	)
	return map[string]rule{
		"servers may be names and addresses":     {set: map[string]any{nats + "servers": []string{"nats", "nats.shop.svc:4222", "10.0.0.7:1", "[fd00::7]:65535", "[::1]"}}},
		"a server with a scheme is refused":      {set: map[string]any{nats + "servers": []string{"nats://nats:4222"}}, refuse: []string{nats + "servers[0]: " + server}},
		"a server with credentials is refused":   {set: map[string]any{nats + "servers": []string{"me:secret@nats:4222"}}, refuse: []string{nats + "servers[0]: " + server}},
		"a broken IPv6 address is refused":       {set: map[string]any{nats + "servers": []string{"[:::7]:4222"}}, refuse: []string{nats + "servers[0]: " + server}},
		"a port above 65535 is refused":          {set: map[string]any{nats + "servers": []string{"nats:65536"}}, refuse: []string{nats + "servers[0]: the port must be 1 to 65535"}},
		"port 0 of a server is refused":          {set: map[string]any{nats + "servers": []string{"nats:0"}}, refuse: []string{nats + "servers[0]: the port must be 1 to 65535"}},
		"sixteen servers are the most":           {set: map[string]any{nats + "servers": numbered(17, "nats%")}, refuse: []string{nats + "servers: must not have more than 16 items"}},
		"servers are required":                   {set: map[string]any{nats + "servers": nil}, refuse: []string{nats + "servers: must be set"}},
		"one server is the least":                {set: map[string]any{nats + "servers": []string{}}, refuse: []string{nats + "servers: must have at least 1 entries"}},
		"a server is listed once":                {set: map[string]any{nats + "servers": []string{"a", "a"}}, refuse: []string{nats + "servers[1]: is listed twice"}},
		"the consumer's servers keep the rules":  {kind: "InboxConsumer", set: map[string]any{"spec.source.nats.servers": []string{"a b", "c:0"}}, refuse: []string{"spec.source.nats.servers[0]: " + server, "spec.source.nats.servers[1]: the port must be 1 to 65535"}},
		"a stream is required":                   {set: map[string]any{nats + "stream": nil}, refuse: []string{nats + "stream: must be set"}},
		"a stream's name has no dots":            {set: map[string]any{nats + "stream": "ORDERS.1"}, refuse: []string{nats + "stream: " + name}},
		"a consumer's stream keeps the rules":    {kind: "InboxConsumer", set: map[string]any{"spec.source.nats.stream": ">"}, refuse: []string{"spec.source.nats.stream: " + name}},
		"a stream's name has at most 255 bytes":  {set: map[string]any{nats + "stream": long(256)}, refuse: []string{nats + "stream: must not be longer than 255 bytes"}},
		"Declare is a topology":                  {set: map[string]any{nats + "topology": "Declare"}},
		"another topology is refused":            {set: map[string]any{nats + "topology": "x"}, refuse: []string{nats + `topology: must be one of "Verify", "Declare", not "x"`}},
		"a broker's credentials are taken":       {set: map[string]any{nats + "credentialsSecretRef.name": "nats"}},
		"a subject has parts":                    {set: map[string]any{nats + "subject": "orders.eu-1.events_2"}},
		"a subject is required":                  {set: map[string]any{nats + "subject": nil}, refuse: []string{nats + "subject: must be set"}},
		"a subject with a wildcard is refused":   {set: map[string]any{nats + "subject": "orders.>"}, refuse: []string{nats + "subject: " + subject}},
		"a subject of the JetStream API":         {set: map[string]any{nats + "subject": "$JS.API.STREAM.DELETE.X"}, refuse: []string{nats + "subject: " + subject}},
		"a subject with an empty part":           {set: map[string]any{nats + "subject": "orders..x"}, refuse: []string{nats + "subject: " + subject}},
		"a template in a subject is refused":     {set: map[string]any{nats + "subject": "{{env}}"}, refuse: []string{nats + "subject: " + subject}},
		"exactly one destination is needed":      {set: map[string]any{"spec.destination": map[string]any{}}, refuse: []string{"spec.destination: exactly one of the fields in [nats] must be set"}},
		"an unknown destination is none":         {set: map[string]any{"spec.destination": map[string]any{"kafka": map[string]any{}}}, refuse: []string{"spec.destination.kafka: is not a known field", "spec.destination: exactly one of the fields in [nats] must be set"}},
		"exactly one source is needed":           {kind: "InboxConsumer", set: map[string]any{"spec.source": map[string]any{}}, refuse: []string{"spec.source: exactly one of the fields in [nats] must be set"}},
		"allowed patterns may have wildcards":    {set: map[string]any{allowed: []string{"orders.*", "a.*.b", "orders.>", "x"}}},
		"an allowed JetStream API is refused":    {set: map[string]any{allowed: []string{"$JS.>"}}, refuse: []string{allowed + "[0]: " + pattern}},
		"a wildcard in a part is refused":        {set: map[string]any{allowed: []string{"ord*"}}, refuse: []string{allowed + "[0]: " + pattern}},
		"> in the middle is refused":             {set: map[string]any{allowed: []string{"a.>.b"}}, refuse: []string{allowed + "[0]: " + pattern}},
		"64 allowed patterns are the most":       {set: map[string]any{allowed: numbered(65, "a%")}, refuse: []string{allowed + ": must not have more than 64 items"}},
		"filters may have wildcards":             {kind: "InboxConsumer", set: map[string]any{filters: []string{"orders.*", "a.>"}}},
		"a filter on an empty part is refused":   {kind: "InboxConsumer", set: map[string]any{filters: []string{"a."}}, refuse: []string{filters + "[0]: " + pattern}},
		"64 filters are the most":                {kind: "InboxConsumer", set: map[string]any{filters: numbered(65, "a%")}, refuse: []string{filters + ": must not have more than 64 items"}},
		"a durable may be named":                 {kind: "InboxConsumer", set: map[string]any{"spec.source.nats.durable": "billing_2"}},
		"a durable with a dot is refused":        {kind: "InboxConsumer", set: map[string]any{"spec.source.nats.durable": "a.b"}, refuse: []string{"spec.source.nats.durable: " + name}},
		"a durable has at most 128 bytes":        {kind: "InboxConsumer", set: map[string]any{"spec.source.nats.durable": long(129)}, refuse: []string{"spec.source.nats.durable: must not be longer than 128 bytes"}},
		"a consumer's topology keeps the rules":  {kind: "InboxConsumer", set: map[string]any{"spec.source.nats.topology": "x"}, refuse: []string{`spec.source.nats.topology: must be one of "Verify", "Declare", not "x"`}},
		"a consumer's broker TLS has a mode too": {kind: "InboxConsumer", set: map[string]any{"spec.source.nats.tls.mode": "x"}, refuse: []string{`spec.source.nats.tls.mode: must be one of "VerifyFull", "VerifyCA", "Insecure", not "x"`}},
	}
}
