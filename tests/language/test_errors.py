"""Errors of reading say where, what was expected, and what was perhaps meant."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import MetaData

from activedb.errors import DefinitionError, RuleSyntaxError
from activedb.language import parse, parse_pattern, parse_term
from activedb.streams import StreamDeclaration
from tests.language.tables import declare

TABLES = declare(MetaData()).tables
QUERY = "CREATE QUERY Q PATTERN SEQ(A, B) RETURN A.x;\n"
RULE = QUERY + "CREATE RULE R ON OUTPUT Q\n"


def error_of(text: str) -> RuleSyntaxError:
    with pytest.raises(RuleSyntaxError) as caught:
        parse(text, tables=TABLES, streams=["estream"])
    return caught.value


def test_error_shows_line_column_and_caret() -> None:
    error = error_of("CREATE QUERY Q\nPATTERN SEQ(A, B)\n\tWHERE C.x = 1")
    assert (error.line, error.column) == (3, 8)
    assert error.excerpt == "\tWHERE C.x = 1\n\t      ^"
    assert str(error) == (
        "line 3, column 8: there is no event 'C' here; there are 'A', 'B'\n"
        "\tWHERE C.x = 1\n\t      ^"
    )


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        # words
        ("CREATE QUERY Q PATERN SEQ(A)", (1, 16), "did you mean 'PATTERN'"),
        ("CREAT QUERY Q PATTERN A", (1, 1), "did you mean 'CREATE'"),
        ("SELECT 1", (1, 1), "found SELECT"),
        ("DROP RULE", (1, 10), "a name, found the end"),
        ("CREATE RULE WHERE ON A", (1, 13), 'as a name write "WHERE"'),
        ("CREATE QUERY Q PATTERN SEQ(A, 'x", (1, 31), "string that has no end"),
        ('CREATE QUERY "Q PATTERN SEQ(A)', (1, 14), "quoted name that has no end"),
        ("CREATE QUERY Q /* PATTERN", (1, 16), "comment that has no end"),
        ("CREATE QUERY Q PATTERN SEQ(A, B) WHERE A.x # 3", (1, 44), "'#' has no meaning"),
        ("CREATE QUERY Q PATTERN SEQ(A, B) WHERE 1 = (SELECT 1", (1, 44), "not closed"),
        ("CREATE RULE R ON A BEGIN DELETE FROM log", (1, 25), "BEGIN has no END"),
        ("CREATE RULE R ON A BEGIN DELETE FROM log) END", (1, 41), "closes nothing"),
        ("CREATE QUERY Q PATTERN A WHERE x = 1e400", (1, 36), "beyond the range of floats"),
        ("CREATE QUERY Q PATTERN A WHERE x = -1e400", (1, 37), "beyond the range of floats"),
        ("CREATE QUERY Q PATTERN A WHERE x = FLOAT '1e400'", (1, 36), "beyond the range of float"),
        ("CREATE QUERY Q PATTERN A WHERE x = DECIMAL 'sNaN'", (1, 36), "not a valid DECIMAL"),
        # patterns
        ("CREATE QUERY Q PATTERN SEQ(A, !B)", (1, 14), "without a window"),
        ("CREATE QUERY Q PATTERN SEQ(A, B+)", (1, 14), "neither a bound nor a window"),
        ("CREATE QUERY Q PATTERN SEQ(A, A)", (1, 24), "two parts"),
        ("CREATE QUERY Q PATTERN SEQ(A, B{3,2}, C)", (1, 32), "many()"),
        ("CREATE QUERY Q PATTERN SEQ(A, B) WITHIN 5 parsecs", (1, 43), "did you mean 'secs'"),
        ("CREATE QUERY Q PATTERN SEQ(A, B) WITHIN 0.1 us", (1, 45), "not a whole number"),
        ("CREATE QUERY Q PATTERN SEQ(A, B) WITHIN 1 s WITHIN 2 s", (1, 45), "occurs twice"),
        ("CREATE QUERY Q PATTERN SEQ(A, B) SELECT nxt", (1, 34), "selection strategy"),
        ("CREATE QUERY Q PATTERN SEQ(A, B) CONTEXT latest", (1, 34), "is not a context"),
        ("CREATE QUERY Q PATTERN SEQ(A, B) SKIP past_lst", (1, 34), "skip strategy"),
        ("CREATE QUERY Q PATTERN SEQ(A, B) SKIP to_first C", (1, 14), "'C'"),
        ("CREATE QUERY Q PATTERN A GAP 3 s", (1, 26), "belongs to a sequence"),
        ("CREATE QUERY Q PATTERN ANY(A, B) WHERE A.x = 1", (1, 34), "WHERE applies to"),
        ("CREATE QUERY Q PATTERN A WHERE [x]", (1, 26), "is a single event"),
        ("CREATE QUERY Q PATTERN SEQ(A, B) WHERE [x] OR A.x = 1", (1, 40), "by itself or between"),
        ("CREATE QUERY Q PATTERN ANY(A, B) AS k", (1, 34), "AS names"),
        ("CREATE QUERY Q PATTERN CRON '* *'", (1, 24), "not a cron expression"),
        ("CREATE QUERY Q PATTERN AT 'noon'", (1, 27), "AT takes a moment"),
        ("CREATE QUERY Q PATTERN AT '2026-01-01T00:00:00'", (1, 24), "time zone"),
        ("CREATE QUERY Q PATTERN AT '0001-01-01T00:00:00+14:00'", (1, 24), "years 1 to 9999"),
        (f"CREATE QUERY Q PATTERN SOME({'9' * 5_000}, A)", (1, 29), "not a valid whole number"),
        (f"CREATE QUERY Q PATTERN CRON '{'9' * 5_000} * * * *'", (1, 24), "not a cron expression"),
        ("CREATE QUERY Q PATTERN SEQ(A, B) WITHIN 1e-999999999s", (1, 53), "not a whole number"),
        ("CREATE QUERY Q PATTERN SEQ(A, B) WITHIN 1e999999999s", (1, 52), "too long"),
        ("CREATE QUERY Q PATTERN TIMEOUT(A)", (1, 24), "takes a sequence"),
        ("CREATE QUERY Q PATTERN TRANSACTION ends", (1, 36), "begin, commit or abort"),
        ("CREATE QUERY Q PATTERN OUTPUT P", (1, 31), "no query 'P'"),
        ("CREATE QUERY Q ON strem PATTERN A", (1, 19), "did you mean 'estream'"),
        ("CREATE QUERY Q ON estream PATTERN A ON estream", (1, 37), "named twice"),
        ("CREATE QUERY Q PATTERN LATE strem", (1, 29), "no stream 'strem'"),
        ("CREATE QUERY Q PATTERN INSERT ON lag", (1, 34), "did you mean 'log'"),
        ("CREATE QUERY Q PATTERN UPDATE(nte) ON log", (1, 31), "did you mean 'note'"),
        ("CREATE QUERY Q PATTERN UPDATE(note) ON log(id)", (1, 43), "named twice"),
        # terms
        ("CREATE QUERY Q PATTERN SEQ(A, B) WHERE A.HCW - ID = 1", (1, 48), "A.ID or B.ID"),
        ("CREATE QUERY Q PATTERN SEQ(A, B) WHERE NEW.x = 1", (1, 40), "the event itself"),
        ("CREATE QUERY Q PATTERN SEQ(A, B) WHERE COUNT(C) = 1", (1, 46), "no part 'C'"),
        ("CREATE QUERY Q PATTERN A WHERE SUM(x) = 1", (1, 36), "name the part"),
        ("CREATE QUERY Q PATTERN A WHERE x = DATE 'may'", (1, 36), "is not a valid DATE"),
        ("CREATE QUERY Q PATTERN A WHERE x = INTERVAL '5'", (1, 45), "INTERVAL '5 min'"),
        ("CREATE QUERY Q PATTERN SEQ(A, B) RETURN A.x, B.x", (1, 46), "returned twice"),
        ("CREATE QUERY Q PATTERN SEQ(A, B) RETURN A.x + 1", (1, 41), "AS total"),
        ("CREATE QUERY Q PATTERN SEQ(A, B) RETURN A.x RETURN B.y", (1, 45), "occurs twice"),
        # SQL
        (RULE + "BEGIN UPDATE lag SET id = 1 END", (3, 14), "did you mean 'log'"),
        (RULE + "BEGIN UPDATE log SET nte = 1 END", (3, 22), "did you mean 'note'"),
        (RULE + "BEGIN UPDATE log SET note = 'x' WHERE wrker = 1 END", (3, 39), "'worker'"),
        (RULE + "BEGIN UPDATE log SET note = 1, note = 2 END", (3, 32), "assigned twice"),
        (RULE + "BEGIN DELETE FROM log WHERE id = NEW.y END", (3, 34), "no attribute 'y'"),
        (RULE + "BEGIN DELETE FROM log WHERE id = Nwe.x END", (3, 34), "no table or event 'Nwe'"),
        (
            RULE + "BEGIN DELETE FROM log WHERE NEW.x = Q.x AND id IN (SELECT i FROM log) END",
            (3, 59),
            "no column 'i'",
        ),
        (RULE + "BEGIN DELETE FROM log WHERE l.id = 1 END", (3, 29), "no table or event 'l'"),
        (RULE + "BEGIN INSERT INTO log (id, note) VALUES (1) END", (3, 42), "as many values"),
        (RULE + "BEGIN INSERT INTO log (id) VALUES (:x) END", (3, 7), "x is a parameter"),
        (RULE + "BEGIN INSERT INTO log (id) VALUES ($1) END", (3, 7), "is a parameter"),
        (RULE + "BEGIN INSERT INTO log (id, nte) VALUES (1, 2) END", (3, 28), "'note'"),
        (RULE + "BEGIN SELECT 1 END", (3, 7), "does nothing with it"),
        (RULE + "BEGIN UPDATE log SET END", (3, 7), "column = value"),
        (RULE + "BEGIN UPDATE log SET id = 1 FROM workerStatus END", (3, 14), "takes no FROM"),
        (RULE + "BEGIN DELETE FROM log RETURNING id END", (3, 19), "takes no RETURNING"),
        (RULE + "BEGIN UPDATE log AS l SET id = 1 END", (3, 14), "no other name"),
        (RULE + "BEGIN DROP TABLE log END", (3, 7), "an action is INSERT"),
        (RULE + "BEGIN ; END", (3, 6), "is empty"),
        (RULE + "WHEN NEW.z > 3 BEGIN DELETE FROM log END", (3, 10), "no attribute 'z'"),
        (RULE + "WHEN z > 3 BEGIN DELETE FROM log END", (3, 6), "no attribute 'z'"),
        (RULE + "WHEN OLD.x > 3 SIGNAL s", (3, 6), "the event itself"),
        (RULE + "WHEN 1 = (SELECT id, note FROM log) SIGNAL s", (3, 11), "one column, not 2"),
        (RULE + "WHEN 1 = (SELECT id FROM log FOR UPDATE) SIGNAL s", (3, 11), "only reads"),
        (RULE + "WHEN 1 = (SELECT id FROM log Q) SIGNAL s", None, None),
        (RULE + "WHEN NEW.x = (SELECT id FROM log AS NEW) SIGNAL s", None, None),
        (
            RULE + "WHEN 1 = (SELECT id FROM log AS NEW WHERE id = NEW.x) SIGNAL s",
            (3, 26),
            "and a table",
        ),
        # rules
        (RULE + "CALL os:system", (3, 1), "not allowed here"),
        (RULE + "COUPLING soon SIGNAL s", (2, 13), "'immediate', 'deferred'"),
        (RULE + "PRIORITY 1 PRIORITY 2 SIGNAL s", (3, 12), "occurs twice"),
        (RULE + "PRIORITY 1.5 SIGNAL s", (3, 10), "whole number"),
        (RULE + "AFTER R2 COUPLING detached SIGNAL s", (2, 13), "by itself"),
        (RULE + "FOR EACH STATEMENT COUPLING deferred WHEN NEW.x = 1 SIGNAL s", (3, 43), "NEW"),
        (RULE + "SIGNAL s(x = 1, x = 2)", (3, 17), "given twice"),
        (RULE + "CONDITION ACTION deferred SIGNAL s", (2, 13), "there is none"),
        ("CREATE RULE R ON SEQ(A, !B) SIGNAL s", (1, 13), "without a window"),
    ],
)
def test_text_without_meaning_says_where_and_what(
    text: str, place: tuple[int, int] | None, message: str | None
) -> None:
    if place is None or message is None:
        assert parse(text, tables=TABLES)
        return
    error = error_of(text)
    assert message in str(error)
    assert (error.line, error.column) == place, str(error)


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("x = 1 " + " " * 10_000 + "#", 10_007),
        ("#" + " " * 10_000 + "x", 1),
        ("x = " + "9" * 10_000, 5),
        ("x = " + "9" * 10_000 + ".5", 5),
        ("x = DATE '" + "9" * 10_000 + "'", 5),
        ("x = INTERVAL '1 " + "y" * 10_000 + "'", 14),
        ("x = 1 + " * 2_000 + "#", 16_001),
        ("x = 1 " + "y" * 10_000, 7),
        ("x = '" + "y" * 10_000, 5),
        ("\t" * 60 + "x = 1 #" + " " * 100, 67),
        ("x = '\x1b[31m' #", 13),
    ],
    ids=lambda value: str(value)[:12],
)
def test_error_in_a_long_line_shows_what_is_near_its_place(text: str, column: int) -> None:
    with pytest.raises(RuleSyntaxError) as caught:
        parse_term(text)
    error = caught.value
    assert (error.line, error.column) == (1, column)
    assert len(str(error)) < 1_000
    line, caret = error.excerpt.split("\n")
    assert line[len(caret) - 1] == text[column - 1]
    assert line[: len(caret) - 1].count("\t") == caret.count("\t")


def test_error_is_a_definition_error_of_patterns_and_terms_too() -> None:
    for read, text in ((parse_pattern, "SEQ(A, "), (parse_term, "1 +")):
        with pytest.raises(DefinitionError, match="line 1, column"):
            read(text)
    with pytest.raises(RuleSyntaxError, match="no event 'B'"):
        parse_term("B.x = 1", parts=["A"])


def test_pattern_on_a_stream_of_declared_types_names_no_others() -> None:
    stream = StreamDeclaration(
        name="estream", type="kind", timestamp="t", types={"EXIT": (), "ENTER": ()}
    )
    streams = {"estream": stream}
    assert parse("CREATE QUERY Q ON estream PATTERN SEQ(EXIT, ENTER)", streams=streams)
    assert parse("CREATE QUERY Q PATTERN SEQ(EXIT, ENTR)", streams=streams)
    with pytest.raises(RuleSyntaxError, match="no events 'ENTR'; did you mean 'ENTER'"):
        parse("CREATE QUERY Q ON estream PATTERN SEQ(EXIT, ENTR)", streams=streams)


@pytest.mark.parametrize("text", [None, 3, b"DROP RULE r"])
def test_what_is_no_text_is_refused(text: Any) -> None:
    for read in (parse, parse_pattern, parse_term):
        with pytest.raises(DefinitionError, match="the rule language is text"):
            read(text)
