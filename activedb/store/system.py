"""Tables of activedb itself. Their schema is the sum of the migrations; a test checks that."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    func,
    text,
)

__all__ = [
    "batch_edges",
    "batch_transactions",
    "batches",
    "dead_letters",
    "decisions",
    "detector_states",
    "followers",
    "kept_columns",
    "late_events",
    "ledger",
    "outputs",
    "owned_tables",
    "partials",
    "pending_firings",
    "producers",
    "program_states",
    "rules",
    "sinks",
    "staged_batches",
    "staged_rows",
    "stream_events",
    "system",
    "versions",
    "workflows",
]

system = MetaData()

ledger = Table(
    "activedb_ledger",
    system,
    Column("query_id", String(100), primary_key=True),
    Column("batch_id", BigInteger, primary_key=True),
    Column("part", Integer, primary_key=True),
    Column("stream", String(200), nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("punctuation_us", BigInteger),
    Column("complete", Boolean, nullable=False),
    Column("events", BigInteger, nullable=False),
    Column("late", BigInteger, nullable=False),
    Column("dead", BigInteger, nullable=False),
    Column("committed_at", DateTime(timezone=True), server_default=func.now(), nullable=False),
    Column("position", JSON(none_as_null=True)),
    UniqueConstraint("stream", "sequence", name="activedb_ledger_sequence"),
)
"""One row per atomic batch, written in the transaction that holds the batch's effects. A
micro-batch is processed in one or more parts; the last part is ``complete``. ``sequence`` numbers
the parts of a stream, so that two processes cannot both feed it. ``position`` is the source's
position after the micro-batch; see `AtomicBatch.position`."""

stream_events = Table(
    "activedb_stream_events",
    system,
    Column("stream", String(200), primary_key=True),
    Column("us", BigInteger, primary_key=True),
    Column("batch_id", BigInteger, primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("event_id", Text),
    Column("type", Text, nullable=False),
    Column("params", JSON, nullable=False),
    Column("stamp", JSON(none_as_null=True)),
)
"""Events at or after the punctuation wait here; earlier events are kept while a pattern's window
may still need them. ``stamp``: the timestamp as given, unless it is a time of day in UTC."""

late_events = Table(
    "activedb_late_events",
    system,
    Column("stream", String(200), primary_key=True),
    Column("query_id", String(100), primary_key=True),
    Column("batch_id", BigInteger, primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("us", BigInteger, nullable=False),
    Column("event_id", Text),
    Column("type", Text, nullable=False),
    Column("params", JSON, nullable=False),
    Column("reason", Text, nullable=False),
    Column("stamp", JSON(none_as_null=True)),
)

producers = Table(
    "activedb_producers",
    system,
    Column("stream", String(200), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("place", Integer, nullable=False),
    Column("known", JSON, nullable=False),
)
"""Producers of a stream, numbered by ``place`` in the order in which they joined. ``known`` is the
producer's state as of its last write: its sync points are at least this far."""

dead_letters = Table(
    "activedb_dead_letters",
    system,
    Column("source", String(200), primary_key=True),
    Column("identity", String(400), primary_key=True),
    Column("kind", String(20), nullable=False),
    Column("payload", JSON, nullable=False),
    Column("error", String(200), nullable=False),
    Column("reason", Text, nullable=False),
)
"""Events that could not be processed (kind ``event``) and rules that failed (kind ``rule``)."""

decisions = Table(
    "activedb_decisions",
    system,
    Column("id", String(40), primary_key=True),
    Column("rule", String(200), nullable=False),
    Column("event", String(64), nullable=False),
    Column("stream", String(200), nullable=False),
    Column("holder", BigInteger, nullable=False),
    Column("identity", String(64), nullable=False),
    Column("us", BigInteger, nullable=False),
    Column("choice", JSON, nullable=False),
    Column("status", String(20), nullable=False),
    Column("chosen", JSON(none_as_null=True)),
    Column("decided_by", String(200)),
    Column("decided_at", DateTime(timezone=True)),
    Column("recorded_at", DateTime(timezone=True), server_default=func.now(), nullable=False),
    Index("activedb_decisions_rule", "rule", "status"),
)
"""Choices that detectors leave open because the order of the events is unknown, written in the
commit of the transaction that raised the events. ``identity``: name of the choice in the detector
of the ``rule``, whose event has the fingerprint ``event``. ``choice``: the candidates and their
rivals, or only the texts of the candidates if they cannot be encoded. ``status``: ``open``;
``chosen``, if the process that runs the detector has yet to apply the decision; ``resolved``.
``chosen``: numbers of candidates. ``stream`` and ``holder``: the process that runs the detector, as
in `detector_states`."""

owned_tables = Table(
    "activedb_owned_tables",
    system,
    Column("name", String(200), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", String(200), nullable=False),
    Column("owned_since", DateTime(timezone=True), server_default=func.now(), nullable=False),
)
"""Tables that one process keeps, or was the last to keep, in its memory; see `_ownership`."""

pending_firings = Table(
    "activedb_pending_firings",
    system,
    Column("firing", String(400), primary_key=True),
    Column("run", String(400), nullable=False),
    Column("rule", String(200), nullable=False),
    Column("occurrence", JSON, nullable=False),
    Column("keep", Boolean, nullable=False),
    Column("done", Boolean, nullable=False),
    Column("intent", Boolean, server_default=false(), nullable=False),
    Column("holder", BigInteger),
    Column("recorded_at", DateTime(timezone=True), server_default=func.now(), nullable=False),
    Index("activedb_pending_firings_run", "run"),
    Index(
        "activedb_pending_firings_free",
        "recorded_at",
        "firing",
        postgresql_where=text("holder IS NULL AND NOT done"),
    ),
)
"""Due firings of rules that run in separate top-level transactions. A firing with ``keep`` was
triggered by a run that is repeated after a crash (a stream's batch, a detached rule): its row stays
after it is ``done`` until that run has committed, so that a repetition finds it. An ``intent`` is
due only if the triggering transaction aborts. ``holder`` is the number of the lease of the process
that runs the firing or recorded the intent; NULL: any process may claim it."""

followers = Table(
    "activedb_followers",
    system,
    Column("slot", String(63), primary_key=True),
    Column("lsn", BigInteger),
    Column("since", DateTime(timezone=True), server_default=func.now(), nullable=False),
)
"""One row per replication slot that is followed for this schema; see `_slot`. ``lsn``: changes
committed before this position in the server's log have been taken, and the firings they triggered
are recorded; NULL until the slot has been created."""

detector_states = Table(
    "activedb_detector_states",
    system,
    Column("rule", String(200), primary_key=True),
    Column("stream", String(200), primary_key=True),
    Column("holder", BigInteger, primary_key=True, autoincrement=False),
    Column("event", String(64), nullable=False),
    Column("state", JSON, nullable=False),
)
"""States of detectors that cannot be derived from the most recent events alone. For a rule that
follows the time of a stream, the state is written with each part of the stream and ``holder`` is 0.
For other rules ``stream`` is empty and ``holder`` is the number of the lease of the process that
runs the detector. ``event`` is the fingerprint of the detected event: a state cannot be used for
any other event."""

partials = Table(
    "activedb_partials",
    system,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("rule", String(200), nullable=False),
    Column("holder", BigInteger, nullable=False),
    Column("event", String(64), nullable=False),
    Column("us", BigInteger, nullable=False),
    Column("occurrence", JSON, nullable=False),
    Index("activedb_partials_rule", "rule", "holder", "us"),
)
"""Events outside streams that detectors keep for later matches, for rules whose state can be
derived from these events alone; written in the commit of the transaction that raised them."""

versions = Table(
    "activedb_versions",
    system,
    Column("name", String(200), primary_key=True),
    Column("us", BigInteger, primary_key=True, autoincrement=False),
    Column("arrival", BigInteger, primary_key=True, autoincrement=False),
    Column("key", Text, primary_key=True),
    Column("value", JSON(none_as_null=True)),
    Column("removed", Boolean, nullable=False),
)
"""Recent writes by programs to the table ``name``, if the table keeps a history: windows still need
them. The position of a version in the serial order is (``us``, ``arrival``). The newest version of
a key is also a row of the table; ``removed``: the key has no row from this version on."""

outputs = Table(
    "activedb_outputs",
    system,
    Column("stream", String(200), primary_key=True),
    Column("program", String(200), primary_key=True),
    Column("us", BigInteger, primary_key=True, autoincrement=False),
    Column("arrival", BigInteger, primary_key=True, autoincrement=False),
    Column("event_id", Text),
    Column("type", Text, nullable=False),
    Column("output", JSON(none_as_null=True)),
    Column("reason", Text),
)
"""Outputs of programs, written with the part that produced them. (``us``, ``arrival``) is the
position of the s-transaction in the serial order. ``reason``: why it aborted; NULL if it
committed."""

program_states = Table(
    "activedb_program_states",
    system,
    Column("stream", String(200), primary_key=True),
    Column("program", String(200), primary_key=True),
    Column("state", JSON, nullable=False),
)
"""States of the detectors of a program's rules, written with each part that changed them."""

kept_columns = Table(
    "activedb_kept_columns",
    system,
    Column("stream", String(200), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("piece", Integer, primary_key=True, autoincrement=False),
    Column("last_us", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
"""Data left by parts that were processed column by column: one row, or a few, for all data of one
kind of the part with this ``sequence``. ``name`` is empty for events that wait or that rules may
need, which are otherwise single rows of `stream_events`; it begins with a space for notes on these
events; otherwise it is the table to which versions were written, which are otherwise in `versions`.
``last_us`` is the time of the latest item."""

workflows = Table(
    "activedb_workflows",
    system,
    Column("name", String(100), primary_key=True),
    Column("definition", JSON, nullable=False),
    Column("place", BigInteger, nullable=False),
    Column("forming", JSON, nullable=False),
    Column("due", JSON, nullable=False),
    Column("origins", JSON, nullable=False),
)
"""One row per workflow, written by each of its transactions. ``place``: the number of records so
far; it is compared and incremented, so that two processes cannot both continue from one state.
``forming``: batches that are being assembled; ``due``: transactions that are formed but not
executed. ``origins``: the last micro-batch from Spark of each source stream."""

batches = Table(
    "activedb_batches",
    system,
    Column("workflow", String(100), primary_key=True),
    Column("id", String(400), primary_key=True),
    Column("place", BigInteger, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("stream", String(100), nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("producer", String(400), nullable=False),
    Column("reader", String(100), nullable=False),
    Column("pieces", JSON, nullable=False),
    Column("rows", JSON(none_as_null=True)),
    Column("state", String(20), nullable=False),
    Column("is_withdrawn", Boolean, nullable=False),
    Column("recorded_at", DateTime(timezone=True), server_default=func.now(), nullable=False),
    UniqueConstraint("workflow", "place", name="activedb_batches_place"),
)
"""Batches of workflows, in the order of ``place``, a numbering shared with the transactions.
``rows``: the contents; NULL for an input batch, whose rows are the rows of its ``pieces``."""

batch_transactions = Table(
    "activedb_batch_transactions",
    system,
    Column("workflow", String(100), primary_key=True),
    Column("id", String(400), primary_key=True),
    Column("place", BigInteger, nullable=False),
    Column("program", String(100), nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("inputs", JSON, nullable=False),
    Column("output", String(400), nullable=False),
    Column("triggered_by", JSON, nullable=False),
    Column("arguments", JSON(none_as_null=True)),
    Column("state", String(20), nullable=False),
    Column("reason", Text),
    Column("recorded_at", DateTime(timezone=True), server_default=func.now(), nullable=False),
    UniqueConstraint("workflow", "place", name="activedb_batch_transactions_place"),
)
"""Executions of the programs of workflows. ``reason``: why it failed or was abandoned."""

batch_edges = Table(
    "activedb_batch_edges",
    system,
    Column("workflow", String(100), primary_key=True),
    Column("earlier", String(400), primary_key=True),
    Column("later", String(400), primary_key=True),
    Index("activedb_batch_edges_up", "workflow", "later", "earlier"),
)
"""Lineage: edges from each batch or transaction to its direct successors, by id."""

rules = Table(
    "activedb_rules",
    system,
    Column("name", String(200), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("coupling", String(50), nullable=False),
    Column("priority", BigInteger),
    Column("on_abort", String(20), nullable=False),
    Column("event", Text, nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("changed_at", DateTime(timezone=True), nullable=False),
    Column("quarantine", Text),
)
"""One row per rule, written in the transaction that changes the rule: the state that a restart
takes over, and the definition (``fingerprint``) it belongs to. ``quarantine``: since when and why
the rule is no longer run."""

sinks = Table(
    "activedb_sinks",
    system,
    Column("kind", String(10), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("query_id", String(100), primary_key=True),
    Column("batch_id", BigInteger, nullable=False),
    Column("known", JSON(none_as_null=True)),
    Column("published_at", DateTime(timezone=True), server_default=func.now(), nullable=False),
)
"""Progress of each Spark query that writes here: the last micro-batch it has published to the
stream or table (``kind``) called ``name``. ``known``, for a stream: the newest times in the batches
taken so far, from which its punctuation is derived."""

staged_batches = Table(
    "activedb_staged_batches",
    system,
    Column("stream", String(200), primary_key=True),
    Column("batch_id", BigInteger, primary_key=True, autoincrement=False),
    Column("query_id", String(100), nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("published_at", DateTime(timezone=True), server_default=func.now(), nullable=False),
)
"""Micro-batches that are published for a stream and not yet taken."""

staged_rows = Table(
    "activedb_staged_rows",
    system,
    Column("query_id", String(100), primary_key=True),
    Column("batch_id", BigInteger, primary_key=True, autoincrement=False),
    Column("writer", String(32), primary_key=True),
    Column("piece", Integer, primary_key=True, autoincrement=False),
    Column("place", Integer),
    Column("data", LargeBinary, nullable=False),
)
"""Rows that Spark tasks have staged, in pieces of many rows: as Arrow IPC streams for a stream, as
JSON for a table. ``writer`` identifies one attempt of one task. ``place`` is the partition of the
attempt that counts; NULL until its batch is published, and forever for all other attempts."""
