"""``activedb pending`` and ``activedb dead-letter``: due firings, and failed ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from activedb.cli._options import Json, Trace, Url
from activedb.cli._report import Reporter
from activedb.cli._running import opened
from activedb.errors import ConfigurationError
from activedb.events import Occurrence, encode
from activedb.firing import Outcome, Retried
from activedb.spelling import clipped, counted

__all__ = ["app", "run_pending"]

_SHORT_MAX = 60  # characters of an occurrence

_WORDS: dict[Outcome, str] = {
    "done": "done",
    "elsewhere": "run by another process",
    "failed": "failed again",
    "undefined": "no such rule",
    "unreadable": "unreadable",
    "event": "not a rule",
}

app = typer.Typer(
    help="List dead letters, and retry their rules.\n\nA dead letter records an event that could "
    "not be processed, or a rule that failed in a separate transaction.",
    no_args_is_help=True,
)


@app.command("ls")
def ls(
    source: Annotated[
        str | None, typer.Option(help="Only dead letters of this source: a stream, or 'rule NAME'.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="Only dead letters of this kind: event or rule.")
    ] = None,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """List the dead letters."""
    reporter = Reporter(as_json=as_json)
    with reporter.looking("reading the database"), opened(None, url) as db:
        letters = db.dead_letters.list(source, kind=kind)
    reporter.first_rows(
        counted(len(letters), "dead letter"),
        ("source", "identity", "kind", "error", "reason"),
        [(x.source, x.identity, x.kind, x.error, x.reason) for x in letters],
        {"letters": [asdict(letter) for letter in letters]},
    )


@app.command("show")
def show(
    source: Annotated[str, typer.Argument(help="Source of the dead letter, as ls prints it.")],
    identity: Annotated[str, typer.Argument(help="Identity of the dead letter, as ls prints it.")],
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Show one dead letter with its payload: the event, or the rule's event occurrence."""
    reporter = Reporter(as_json=as_json)
    with reporter.looking("reading the database"), opened(None, url) as db:
        found = [x for x in db.dead_letters.list(source) if x.identity == identity]
    if not found:
        raise _no_letter(source, identity)
    fields = asdict(found[0])
    rows = [(name, str(value)) for name, value in fields.items()]
    reporter.rows("dead letter", ("field", "value"), rows, fields)


@app.command("retry")
def retry(
    file: Annotated[Path, typer.Argument(help="Python file that declares the rules.")],
    source: Annotated[
        str | None, typer.Argument(help="Only dead letters of this source, as 'rule NAME'.")
    ] = None,
    identity: Annotated[
        str | None, typer.Argument(help="Only the dead letter of SOURCE with this identity.")
    ] = None,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Retry the rules of dead letters, as FILE defines them now.

    Each rule runs in a separate top-level transaction, which deletes the dead letter on commit. If
    the rule fails again, its dead letter stays, with the new reason. Dead letters of events cannot
    be retried.

    Exits with 0 if all are done, with 1 if some are left, and with 2 if FILE or SOURCE is not
    valid. Dead letters of events count only if SOURCE names them.
    """
    reporter = Reporter(as_json=as_json)
    with reporter.own_output(), reporter.working("retrying dead letters"):
        results = _retried(file, source, identity, url, reporter)
    counts = Counter(result.outcome for result in results)
    said = ", ".join(f"{counts[outcome]:,} {word}" for outcome, word in _WORDS.items())
    reporter.first_rows(
        f"{counted(len(results), 'dead letter')}: {said}" if results else "no dead letters",
        ("source", "identity", "outcome", "reason"),
        [
            (x.letter.source, x.letter.identity, _WORDS[x.outcome], x.reason)
            for x in sorted(results, key=lambda result: not result.is_left)
        ],
        {
            "letters": [
                {
                    "source": x.letter.source,
                    "identity": x.letter.identity,
                    "kind": x.letter.kind,
                    "outcome": x.outcome,
                    "reason": x.reason,
                }
                for x in results
            ],
            "counts": {outcome: counts[outcome] for outcome in _WORDS},
        },
    )
    if any(x.is_left and (x.outcome != "event" or source is not None) for x in results):
        raise typer.Exit(1)


def _retried(
    file: Path, source: str | None, identity: str | None, url: str | None, reporter: Reporter
) -> list[Retried]:
    with opened(file, url) as db:
        letters = db.dead_letters.list(source)
        if identity is not None:
            letters = [letter for letter in letters if letter.identity == identity]
        if source is not None and not letters:
            raise _no_letter(source, identity)
        db.create_all()
        if source is not None and identity is not None:
            return [db.dead_letters.retry(source, identity)]
        return db.dead_letters.retry_all(
            source,
            on_progress=lambda number, of: reporter.update(f"{number:,} of {of:,} dead letters"),
        )


def run_pending(file: Path | None, url: str | None, reporter: Reporter) -> None:
    """Print the firings that are recorded, due and not done.

    Raises
    ------
    ConfigurationError, DefinitionError
        If file or URL are not valid.
    """
    doing = reporter.looking("reading the database")
    with reporter.own_output(), doing, opened(file, url) as db:
        pending = db.admin.pending_firings()
    reporter.first_rows(
        counted(len(pending), "pending firing"),
        ("rule", "triggered by", "occurrence"),
        [(x.rule, x.run, _short(x.occurrence)) for x in pending],
        {
            "pending": [
                {
                    "firing": x.firing,
                    "run": x.run,
                    "rule": x.rule,
                    "occurrence": encode(x.occurrence),
                }
                for x in pending
            ]
        },
    )


def _no_letter(source: str, identity: str | None) -> ConfigurationError:
    which = "" if identity is None else f" {identity!r}"
    return ConfigurationError(
        f"there is no dead letter{which} of {source!r}; activedb dead-letter ls shows which there "
        f"are (a rule's are of 'rule NAME')"
    )


def _short(o: Occurrence) -> str:
    """Return an occurrence on one short line."""
    kind, name = o.key
    what = name if kind in ("event", "composite") else f"{kind} {name}"
    text = f"{what} {', '.join(f'{key}={value!r}' for key, value in o.params.items())}".rstrip()
    return clipped(text, _SHORT_MAX)
