package v1alpha1

// Condition types. Those of the first group are always there, Unknown while nobody has reported.
const (
	// ConditionReady is True if the workers that run now were made from this generation, and database, schema and
	// broker are all right. It sums up the others.
	ConditionReady = "Ready"
	// ConditionReferencesResolved is True if every Secret and ConfigMap that the resource names, with its keys, was
	// found.
	ConditionReferencesResolved = "ReferencesResolved"
	// ConditionWorkloadAvailable is True if enough worker Pods are ready.
	ConditionWorkloadAvailable = "WorkloadAvailable"
	// ConditionDatabaseReachable is True if the workers can log in to a database that accepts writes.
	ConditionDatabaseReachable = "DatabaseReachable"
	// ConditionSchemaReady is True if Postrider's tables are there, of a version that the workers know, and right
	// for the resource.
	ConditionSchemaReady = "SchemaReady"
	// ConditionBrokerReachable is True if a relay can log in to the broker and use its destination.
	ConditionBrokerReachable = "BrokerReachable"
	// ConditionSourceReachable is True if a consumer can log in to the broker and read its source.
	ConditionSourceReachable = "SourceReachable"
	// ConditionBacklogHealthy is False while the backlog or lag would take too long to work off.
	ConditionBacklogHealthy = "BacklogHealthy"
	// ConditionDeadLettersHealthy is False while dead letters wait for a person.
	ConditionDeadLettersHealthy = "DeadLettersHealthy"
)

// Condition types that are present only while True.
const (
	// ConditionReconciling says that a change is being rolled out.
	ConditionReconciling = "Reconciling"
	// ConditionStalled says that nothing will move until a person changes something.
	ConditionStalled = "Stalled"
	// ConditionInsecureTransport says that a connection sends plain text.
	ConditionInsecureTransport = "InsecureTransport"
	// ConditionNameConflict says that an object which is not ours has the name of one that we need.
	ConditionNameConflict = "NameConflict"
	// ConditionTableInUse says that another relay uses the outbox table; this one publishes nothing.
	ConditionTableInUse = "TableInUse"
	// ConditionConsumerNameInUse says that another resource consumes under this consumerName; this one applies
	// nothing.
	ConditionConsumerNameInUse = "ConsumerNameInUse"
	// ConditionRetryingAmbiguous says that a message has failed for long and nothing tells whether it or its
	// surroundings are the cause.
	ConditionRetryingAmbiguous = "RetryingAmbiguous"
	// ConditionDeadLetterUnavailable says that dead letters cannot be written, so the messages concerned stay where
	// they are.
	ConditionDeadLetterUnavailable = "DeadLetterUnavailable"
	// ConditionTargetMayDiscard says that the broker is set up so that it may lose messages that it confirmed.
	ConditionTargetMayDiscard = "TargetMayDiscard"
	// ConditionPartitionCountChanged says that the relay's topic was seen to get another number of partitions in the last
	// hour. Keys have moved to others: a consumer that reads old and new partitions side by side needs versions for the
	// order of such a key. A worker that has started since does not know.
	ConditionPartitionCountChanged = "PartitionCountChanged"
	// ConditionNonDurableDatabase says that the database is set up so that it may lose transactions that it committed.
	ConditionNonDurableDatabase = "NonDurableDatabase"
	// ConditionPublishSlow says that more than one publish in a hundred of the last five minutes took longer than half of
	// batch.publishTimeout, after which it is cut and its messages are sent again.
	ConditionPublishSlow = "PublishSlow"
	// ConditionClockWentBack says that the database showed a state that is older than what the relay wrote to it, by
	// lease.duration or more, in the last hour: it was restored to an older point, a copy took over that lacks the last
	// commits, or its clock was set back. A worker that has started since does not know.
	ConditionClockWentBack = "ClockWentBack"
	// ConditionVacuumBlocked says that a transaction, a prepared one or a replication slot has kept many dead rows from being
	// cleaned away for ten minutes or longer, so that reads slow down.
	ConditionVacuumBlocked = "VacuumBlocked"
	// ConditionCertificateExpiring says that a client certificate, or the last authority of a CA bundle, expires soon: in
	// less than 14 days, or a fifth of its life where that is shorter.
	ConditionCertificateExpiring = "CertificateExpiring"
	// ConditionNotifyUnavailable says that batch.wakeUp is Notify and the database does not tell the relay of commits: it
	// looks once a pollInterval, as with Poll.
	ConditionNotifyUnavailable = "NotifyUnavailable"
)

// Reasons of conditions that hold.
const (
	// ReasonReady says that all is well.
	ReasonReady = "Ready"
	// ReasonReachable says that a server was reached and used.
	ReasonReachable = "Reachable"
	// ReasonResolved says that every reference was found.
	ReasonResolved = "Resolved"
	// ReasonSchemaCurrent says that the tables are of the version that the workers want.
	ReasonSchemaCurrent = "SchemaCurrent"
	// ReasonAvailable says that enough Pods are ready.
	ReasonAvailable = "Available"
	// ReasonWithinBounds says that a number is where it should be.
	ReasonWithinBounds = "WithinBounds"
)

// Reasons of conditions that nobody can judge now.
const (
	// ReasonNotReported says that no worker has reported yet.
	ReasonNotReported = "NotReported"
	// ReasonStatusStale says that the last report is older than three status intervals.
	ReasonStatusStale = "StatusStale"
	// ReasonStarting says that a worker has started and not finished its first look.
	ReasonStarting = "Starting"
)

// Reasons of servers that cannot be used. The words for brokers are those of the broker's answers.
const (
	// ReasonUnreachable says that no connection could be made: wrong host or port, server down, network closed.
	ReasonUnreachable = "Unreachable"
	// ReasonAuthFailed says that the server refused the credentials.
	ReasonAuthFailed = "AuthFailed"
	// ReasonPermissionDenied says that the user may not do what is needed.
	ReasonPermissionDenied = "PermissionDenied"
	// ReasonTLSFailed says that the server's or our certificate was not accepted.
	ReasonTLSFailed = "TLSFailed"
	// ReasonDatabaseMissing says that the server has no database of that name.
	ReasonDatabaseMissing = "DatabaseMissing"
	// ReasonReadOnly says that none of the hosts accepts writes.
	ReasonReadOnly = "ReadOnly"
	// ReasonDatabaseFull says that the database has no space left.
	ReasonDatabaseFull = "DatabaseFull"
	// ReasonDatabaseError says that the database refuses to work for another reason.
	ReasonDatabaseError = "DatabaseError"
	// ReasonOverPrivilegedRole says that the user may do so much that a statement of a resource must not run as it.
	ReasonOverPrivilegedRole = "OverPrivilegedRole"
	// ReasonStreamMissing says that the broker has no stream of that name, or none that takes the subject.
	ReasonStreamMissing = "StreamMissing"
	// ReasonStreamFull says that the stream takes no more messages.
	ReasonStreamFull = "StreamFull"
	// ReasonTopologyMismatch says that stream or durable are set up otherwise than the resource needs.
	ReasonTopologyMismatch = "TopologyMismatch"
	// ReasonNotEnoughReplicas says that a partition has fewer in-sync replicas than it needs to take messages.
	ReasonNotEnoughReplicas = "NotEnoughReplicas"
	// ReasonBrokerBlocked says that the broker takes no messages for now: it is short of memory or disk.
	ReasonBrokerBlocked = "BrokerBlocked"
	// ReasonFenced says that another process publishes for the same shard: this one has lost it.
	ReasonFenced = "Fenced"
	// ReasonDuplicateNotHeld says that the stream calls a message a duplicate of one that it does not hold. It goes again.
	ReasonDuplicateNotHeld = "DuplicateNotHeld"
	// ReasonOffsetOutOfRange says that a partition's next message was deleted before it was consumed.
	ReasonOffsetOutOfRange = "OffsetOutOfRange"
	// ReasonNoAnswer says that the broker did not answer in time.
	ReasonNoAnswer = "NoAnswer"
	// ReasonBrokerError says that the broker refuses to work for another reason.
	ReasonBrokerError = "BrokerError"
)

// Reasons of tables, references and resources that are not right.
const (
	// ReasonSchemaMissing says that Postrider's tables are not there.
	ReasonSchemaMissing = "SchemaMissing"
	// ReasonSchemaOutdated says that migrations have not been applied.
	ReasonSchemaOutdated = "SchemaOutdated"
	// ReasonSchemaTooNew says that the tables are of a version that these workers do not know.
	ReasonSchemaTooNew = "SchemaTooNew"
	// ReasonSchemaInvalid says that the tables are not what the resource says: shards, identity or hash differ.
	ReasonSchemaInvalid = "SchemaInvalid"
	// ReasonStatementInvalid says that a route's statement could not be prepared.
	ReasonStatementInvalid = "StatementInvalid"
	// ReasonSecretNotFound says that a Secret, or a key of it, is missing.
	ReasonSecretNotFound = "SecretNotFound"
	// ReasonConfigMapNotFound says that a ConfigMap, or a key of it, is missing.
	ReasonConfigMapNotFound = "ConfigMapNotFound"
	// ReasonInvalidConfig says that the workers refuse the configuration; the one before stays in force.
	ReasonInvalidConfig = "InvalidConfig"
	// ReasonInvalidSpec says that the spec breaks a rule that its schema does not hold it to: one that is newer than the
	// resource, or one of Kubernetes for a field that it defines.
	ReasonInvalidSpec = "InvalidSpec"
	// ReasonInsecureTransportNotAllowed says that mode Insecure needs the operator's --allow-insecure-transport.
	ReasonInsecureTransportNotAllowed = "InsecureTransportNotAllowed"
	// ReasonPriorityClassNotAllowed says that the operator was not told to accept workload.priorityClassName.
	ReasonPriorityClassNotAllowed = "PriorityClassNotAllowed"
	// ReasonInUse says that another resource holds what this one needs.
	ReasonInUse = "InUse"
)

// Reasons of warnings.
const (
	// ReasonPlainText says that tls.mode is Insecure.
	ReasonPlainText = "PlainText"
	// ReasonTargetMayDiscard says that the stream drops old messages when it is full, consumed or not.
	ReasonTargetMayDiscard = "TargetMayDiscard"
	// ReasonSettingsOff says that fsync, full_page_writes or synchronous_commit is off.
	ReasonSettingsOff = "SettingsOff"
	// ReasonAsynchronousStandby says that several hosts are named and commits wait for no copy of the server:
	// synchronous_standby_names is empty, or synchronous_commit is local. Hosts that share their storage need none.
	ReasonAsynchronousStandby = "AsynchronousStandby"
	// ReasonNearTimeout says that what is waited for comes late, and soon too late.
	ReasonNearTimeout = "NearTimeout"
	// ReasonEarlierThanWritten says that a database shows an earlier state than was written to it.
	ReasonEarlierThanWritten = "EarlierThanWritten"
	// ReasonOldTransaction says that a transaction, prepared or not, or a replication slot may have to see old rows still.
	ReasonOldTransaction = "OldTransaction"
	// ReasonExpiresSoon says that little time is left, or none.
	ReasonExpiresSoon = "ExpiresSoon"
	// ReasonNoWitness says that nothing got through meanwhile that would tell whether it is a message's fault.
	ReasonNoWitness = "NoWitness"
	// ReasonKeysMoved says that keys have another place than before.
	ReasonKeysMoved = "KeysMoved"
	// ReasonFewReplicas says that the stream is kept on too few servers to outlive the loss of one.
	ReasonFewReplicas = "FewReplicas"
)

// Reasons of workers and workloads.
const (
	// ReasonPaused says that runPolicy is Pause.
	ReasonPaused = "Paused"
	// ReasonDrained says that runPolicy is Drain.
	ReasonDrained = "Drained"
	// ReasonScaledToZero says that replicas is 0: nothing moves, and nobody can say how database and broker are.
	ReasonScaledToZero = "ScaledToZero"
	// ReasonProgressing says that Pods are starting or being replaced.
	ReasonProgressing = "Progressing"
	// ReasonUnavailable says that not enough Pods are ready.
	ReasonUnavailable = "Unavailable"
	// ReasonDrainTooSlow says that the backlog grows faster than it is worked off, or would take too long.
	ReasonDrainTooSlow = "DrainTooSlow"
	// ReasonOpenDeadLetters says that dead letters are open.
	ReasonOpenDeadLetters = "OpenDeadLetters"
	// ReasonReconcileError says that the last pass failed and is being repeated.
	ReasonReconcileError = "ReconcileError"
)
