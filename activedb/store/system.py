"""activedb's own tables. Their schema is the sum of the migrations, which a test checks."""

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
"""One row per atomic batch, written in the transaction of the batch's effects. A micro-batch is
processed in one or more parts; the last is ``complete``. ``sequence`` counts the parts of a
stream, so that two processes cannot both feed it. ``position`` says where the source stands behind
the micro-batch; see `AtomicBatch.position`."""

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
"""Events at or after the punctuation wait here; earlier ones are kept while a pattern's window
may still need them. ``stamp``: the timestamp as it was given, unless it is a time of day in UTC."""

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
"""The producers of a stream, by ``place`` in the order in which they joined. ``known`` is what was
known of one when it was written: its sync points are this far or further."""

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
rivals; if they cannot be written, texts of the candidates. ``status``: ``open``; ``chosen``, if the
process that has the detector has still to apply the decision; ``resolved``. ``chosen``: numbers of
candidates. ``stream`` and ``holder``: the process that has the detector, as in
`detector_states`."""

owned_tables = Table(
    "activedb_owned_tables",
    system,
    Column("name", String(200), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", String(200), nullable=False),
    Column("owned_since", DateTime(timezone=True), server_default=func.now(), nullable=False),
)
"""Tables that one process keeps, or kept last, in its memory; see `_ownership`."""

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
"""Firings of rules in top-level transactions of their own that are due. Those with ``keep`` were
triggered by a run that is done again after a crash (a stream's batch, a detached rule): they stay
when they are ``done``, until that run has committed, so that doing it again finds them. An
``intent`` is due only if the transaction that triggered it aborts. ``holder`` is the number of the
lease of the process that runs it, or whose intent it is; NULL: whoever is first may take it."""

followers = Table(
    "activedb_followers",
    system,
    Column("slot", String(63), primary_key=True),
    Column("lsn", BigInteger),
    Column("since", DateTime(timezone=True), server_default=func.now(), nullable=False),
)
"""One row per replication slot that is followed for this schema; see `_slot`. ``lsn``: what has
committed before this place of the server's log has been taken, and what it triggered is recorded;
NULL until the slot is made."""

detector_states = Table(
    "activedb_detector_states",
    system,
    Column("rule", String(200), primary_key=True),
    Column("stream", String(200), primary_key=True),
    Column("holder", BigInteger, primary_key=True, autoincrement=False),
    Column("event", String(64), nullable=False),
    Column("state", JSON, nullable=False),
)
"""What the detectors of rules keep whose state does not follow from the last events alone. Of a
rule that follows the time of a stream: written with each part of it, ``holder`` is 0. Of others
``stream`` is empty, and ``holder`` the number of the lease of the process that has the detector.
``event`` is the fingerprint of what is detected: the state is of no use to another event."""

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
"""Events outside of streams that detectors keep for later matches, of rules whose state follows
from these alone; written in the commit of the transaction that raised them."""

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
"""What programs have written lately into the table ``name``, if it keeps a history: windows still
need it. The place of a version in the serial order is (``us``, ``arrival``). The newest version of
a key is a row of the table, too; ``removed``: the key had no row from then on."""

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
"""What programs put out, written with the part that did: of the s-transaction whose place in the
serial order is (``us``, ``arrival``). ``reason``: why it aborted; NULL if it committed."""

program_states = Table(
    "activedb_program_states",
    system,
    Column("stream", String(200), primary_key=True),
    Column("program", String(200), primary_key=True),
    Column("state", JSON, nullable=False),
)
"""What the detectors of a program's rules keep, written with each part that has changed it."""

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
"""What parts that were processed in columns leave behind: a row, or a few, for all of one kind that
the part of this ``sequence`` does. Of events that wait, or that rules may need, which else are
single rows of `stream_events`, ``name`` is empty; of notes on them it begins with a space; else it
is the table into which versions were written, else in `versions`. ``last_us`` is the time of the
last of them."""

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
"""One row per workflow, written by each of its transactions. ``place``: how much has been recorded;
it is compared and raised, so that two processes cannot both go on from one state. ``forming``:
which batches wait to be formed; ``due``: the transactions that are formed and not executed.
``origins``: the last micro-batch of each source stream that came from Spark."""

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
"""The batches of workflows, in the order of ``place``, which they share with the transactions.
``rows``: what is in it; NULL for an input batch, whose rows are those of its ``pieces``."""

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
"""The executions of programs of workflows. ``reason``: why it failed, or was given up."""

batch_edges = Table(
    "activedb_batch_edges",
    system,
    Column("workflow", String(100), primary_key=True),
    Column("earlier", String(400), primary_key=True),
    Column("later", String(400), primary_key=True),
    Index("activedb_batch_edges_up", "workflow", "later", "earlier"),
)
"""The lineage: from each batch or transaction to what directly follows from it, by their ids."""

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
"""One row per rule, written in the transaction that changes it: what a restart takes over, and
which definition (``fingerprint``) that belongs to. ``quarantine``: since when and why the rule is
not run any more."""

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
"""How far each query of Spark is that writes here: the last micro-batch it has published, into the
stream or table (``kind``) of that ``name``. ``known``, of a stream: the newest times in what has
been taken, from which its punctuation follows."""

staged_batches = Table(
    "activedb_staged_batches",
    system,
    Column("stream", String(200), primary_key=True),
    Column("batch_id", BigInteger, primary_key=True, autoincrement=False),
    Column("query_id", String(100), nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("published_at", DateTime(timezone=True), server_default=func.now(), nullable=False),
)
"""Micro-batches that are published for a stream and that nobody has taken yet."""

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
"""What tasks of Spark have staged, in pieces of many rows: of a stream as Arrow's IPC streams, of a
table as JSON. ``writer`` is one attempt of one task. ``place`` is the partition whose attempt
counts; NULL until its batch is published, and of other attempts for ever."""
