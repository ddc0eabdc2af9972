"""TLS options of a URL reach the server, on each connection; a wrong certificate ends it."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Column, Integer, Table, make_url, text

import activedb as adb
from activedb.errors import InvalidURL, ServerUnreachable
from activedb.store.journals import staging
from activedb.store.server._home import server_account
from tests.patience import PATIENCE_S
from tests.servers import plain_server, temporary_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MADE = ("-newkey", "rsa:2048", "-nodes", "-days", "2")


@dataclass(frozen=True)
class Guarded:
    """A server with a certificate for 127.0.0.1, and authorities that have signed it, or not."""

    url: str
    authority: Path
    stranger: Path

    def with_options(self, host: str | None = None, **options: str) -> str:
        """Return its URL with more options of libpq."""
        url = make_url(self.url).update_query_dict(options)
        url = url.set(host=host or url.host)
        return url.render_as_string(hide_password=False)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    """A server that speaks TLS; its certificate is signed by an authority made for it."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made with the command openssl, and there is none")
    with temporary_folder() as folder:
        authority, stranger = (_authority(folder, name) for name in ("authority", "stranger"))
        certificate, key = _signed(folder, authority)
        account = server_account()
        os.chown(key, account.uid, account.gid)
        settings = ("ssl=on", f"ssl_cert_file={certificate}", f"ssl_key_file={key}")
        with plain_server(*settings) as url:
            yield Guarded(url, authority, stranger)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(
        ["openssl", *map(str, arguments)],
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE_S,
    )


def _authority(folder: Path, name: str) -> Path:
    made = folder / f"{name}.pem"
    key = folder / f"{name}.key"
    subject = ("-subj", f"/CN=activedb tests {name}")
    _openssl("req", "-x509", *MADE, "-keyout", key, "-out", made, *subject)
    return made


def _signed(folder: Path, authority: Path) -> tuple[Path, Path]:
    certificate, key, request = (folder / f"server.{end}" for end in ("pem", "key", "csr"))
    extensions = folder / "extensions"
    extensions.write_text("subjectAltName = IP:127.0.0.1\n")
    _openssl("req", "-new", *MADE[:3], "-keyout", key, "-out", request, "-subj", "/CN=server")
    _openssl(
        *(
            "x509",
            "-req",
            "-in",
            request,
            "-CA",
            authority,
            "-CAkey",
            authority.with_suffix(".key"),
        ),
        *("-set_serial", "1", "-days", "2", "-extfile", extensions, "-out", certificate),
    )
    key.chmod(0o600)
    return certificate, key


def test_every_connection_is_encrypted_and_the_server_verified(guarded: Guarded) -> None:
    url = guarded.with_options(
        sslmode="verify-full", sslrootcert=str(guarded.authority), channel_binding="require"
    )
    with adb.connect(url) as db:
        rows = Table("rows", db.metadata, Column("id", Integer, primary_key=True))
        db.create_all()
        with db.transaction() as t:
            t.insert(rows, {"id": 1})
            with db.connection() as connection:
                found = connection.execute(
                    text(
                        "SELECT a.application_name, s.ssl, s.version FROM pg_stat_activity a "
                        "JOIN pg_stat_ssl s USING (pid) WHERE a.usename = current_user"
                    )
                ).all()
    assert len(found) >= 3  # of the transaction, of the locks on tables, this one
    assert all(row.ssl and row.version >= "TLSv1.2" for row in found), found


def test_the_sinks_connections_are_encrypted_too(guarded: Guarded) -> None:
    url = guarded.with_options(sslmode="verify-full", sslrootcert=str(guarded.authority))
    adb.connect(url).close()
    sink = staging(url, None)
    try:
        with sink._engine.connect() as connection:
            query = text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
            assert connection.scalar(query) is True
    finally:
        sink.close()
        staging.cache_clear()


def test_a_server_whose_authority_is_not_trusted_is_refused(guarded: Guarded) -> None:
    url = guarded.with_options(sslmode="verify-ca", sslrootcert=str(guarded.stranger))
    with pytest.raises(ServerUnreachable, match="certificate verify failed") as raised:
        adb.connect(url)
    assert str(make_url(url).password) not in str(raised.value)


def test_a_server_of_another_name_is_refused(guarded: Guarded) -> None:
    url = guarded.with_options(
        "localhost", sslmode="verify-full", sslrootcert=str(guarded.authority)
    )
    with pytest.raises(ServerUnreachable, match="does not match host name"):
        adb.connect(url)


def test_a_server_without_tls_is_refused_where_it_is_required(plain_postgres_url: str) -> None:
    url = make_url(plain_postgres_url).update_query_dict({"sslmode": "require"})
    with pytest.raises(ServerUnreachable, match="server does not support SSL"):
        adb.connect(url.render_as_string(hide_password=False))


def test_an_option_that_does_not_exist_is_named(plain_postgres_url: str) -> None:
    url = make_url(plain_postgres_url).update_query_dict({"sslmoed": "require"})
    with pytest.raises(InvalidURL, match='invalid connection option "sslmoed"') as raised:
        adb.connect(url.render_as_string(hide_password=False))
    assert str(url.password) not in str(raised.value)
