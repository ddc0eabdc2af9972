"""Servers and connections: the embedded server, drivers, time limits, errors."""

from activedb.store.server._connections import (
    ConnectionCache,
    await_server,
    backend_of,
    close_for_good,
    cut,
    engine_for,
    leave_sockets,
    ping_if_idle,
    track_sockets,
)
from activedb.store.server._driver_errors import translate_error, translate_errors
from activedb.store.server._embedded import EmbeddedServer, check_programs, home_of
from activedb.store.server._home import POSTGRES_VERSION
from activedb.store.server._in_doubt_commits import commit_outcome, qualified_xid, xid_of
from activedb.store.server._migrations import Migrations, migration_sql, migrations, upgrade
from activedb.store.server._patience import PatientLatch, at_least, limited
from activedb.store.server._plain import (
    ServerFacts,
    drop_left_schemas,
    plain_connection,
    postgres_url,
    scratch_schema,
    server_facts,
)
from activedb.store.server._prepared import (
    PREPARE_THRESHOLD,
    Step,
    StepFailed,
    driver_cursor,
    execute_alone,
    fetch,
    run,
    takes_messages,
    together,
)
from activedb.store.server._quoting import literal, quoted
from activedb.store.server._roles import (
    NOTIFY,
    OUTCOMES,
    Right,
    check_essential,
    missing_functions,
    missing_rights,
    rights_of_roles,
    role_statements,
)

__all__ = [
    "NOTIFY",
    "OUTCOMES",
    "POSTGRES_VERSION",
    "PREPARE_THRESHOLD",
    "ConnectionCache",
    "EmbeddedServer",
    "Migrations",
    "PatientLatch",
    "Right",
    "ServerFacts",
    "Step",
    "StepFailed",
    "at_least",
    "await_server",
    "backend_of",
    "check_essential",
    "check_programs",
    "close_for_good",
    "commit_outcome",
    "cut",
    "driver_cursor",
    "drop_left_schemas",
    "engine_for",
    "execute_alone",
    "fetch",
    "home_of",
    "leave_sockets",
    "limited",
    "literal",
    "migration_sql",
    "migrations",
    "missing_functions",
    "missing_rights",
    "ping_if_idle",
    "plain_connection",
    "postgres_url",
    "qualified_xid",
    "quoted",
    "rights_of_roles",
    "role_statements",
    "run",
    "scratch_schema",
    "server_facts",
    "takes_messages",
    "together",
    "track_sockets",
    "translate_error",
    "translate_errors",
    "upgrade",
    "xid_of",
]
