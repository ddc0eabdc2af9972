"""Parser from text to parse trees, with errors that list the expected words.

A name may have hyphens right after a dot and in ``[ ]``, as in ``ENTER.HCW-ID``; anywhere else a
hyphen is a minus sign. Keywords may be written in any case; after a dot, no word is a keyword.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedToken
from lark.lexer import Lexer

from activedb.errors import DefinitionError, RuleSyntaxError
from activedb.spelling import clipped, did_you_mean, printable

__all__ = [
    "KEYWORDS",
    "STARTS",
    "SourceText",
    "TokenLexer",
    "parse_tree",
    "skip_sql",
    "start_of",
    "tokens",
]


_EXCERPT_MAX = 160  # characters of a line that an error shows
_WORD_MAX = 100  # characters of a word in its message
_LONG_WORD = re.compile(rf"\S{{{_WORD_MAX + 1},}}")


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text to read.

    Attributes
    ----------
    text : str
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise DefinitionError(
                f"the rule language is text, not {self.text!r}; a file is read by "
                "db.rules.load_file(path)"
            )

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column of a character, both from 1."""
        before = self.text[: max(0, min(offset, len(self.text)))]
        return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1

    def error(self, offset: int, message: str) -> RuleSyntaxError:
        """Return an error that shows the line, as far as it is near, with a caret below."""
        line, column = self.place(offset)
        shown = self.text.split("\n")[line - 1].rstrip("\r")
        begin = max(0, min(column - 1 - _EXCERPT_MAX // 2, len(shown) - _EXCERPT_MAX))
        end = begin + _EXCERPT_MAX
        before = ("…" if begin else "") + _escaped(shown[begin : column - 1])
        after = _escaped(shown[column - 1 : end]) + ("…" if end < len(shown) else "")
        # A tab is a tab in both lines, which aligns the caret.
        indent = "".join("\t" if c == "\t" else " " for c in before)
        excerpt = f"{before}{after}\n{indent}^"
        message = _LONG_WORD.sub(lambda word: clipped(word[0], _WORD_MAX), message)
        return RuleSyntaxError(
            f"line {line}, column {column}: {message}\n{excerpt}",
            line=line,
            column=column,
            excerpt=excerpt,
        )


def _escaped(text: str) -> str:
    """Return `text` as a terminal shows it, but with its tabs."""
    return "\t".join(map(printable, text.split("\t")))


# -- lexer of the rule language, which passes SQL on as single tokens ------------------------------


KEYWORDS = frozenset(
    """
    ABORT ACTION AFTER ALL ALTER AND ANY APERIODIC AS AT BEGIN BETWEEN CALL CONDITION CONTEXT
    COUPLING CREATE CRON DELETE DISABLE DROP EACH ENABLE END EVENT EVERY EXISTS FALSE FOR FULL GAP
    IF IN INSERT IS LATE LIKE MANY MATCHES NEW NOT NULL OFFSET OLD ON OR OUTPUT PARTIALS PATTERN
    PERIODIC PRIORITY QUERY REFERENCING REPLACE RETURN ROW RULE SAME SELECT SEQ SET SIGNAL SKIP
    SOME STATEMENT TIMEOUT TRANSACTION TRUE UNCERTAIN UPDATE WHEN WHERE WITHIN ZONE
    """.split()  # noqa: SIM905
)
_AGGREGATES = frozenset(("FIRST", "LAST", "PREV", "COUNT", "SUM", "AVG", "MIN", "MAX"))
_TYPES = frozenset(("DATE", "TIME", "TIMESTAMP", "INTERVAL", "DECIMAL", "FLOAT"))
_BEFORE_NAMES = frozenset(("UPDATE", "ON", "SIGNAL"))
"""Words after which a bracket may follow a name."""
_SIGNS = {
    ";": "SEMICOLON",
    ",": "COMMA",
    ".": "DOT",
    ":": "COLON",
    "(": "LPAR",
    ")": "RPAR",
    "[": "LSQB",
    "]": "RSQB",
    "{": "LBRACE",
    "}": "RBRACE",
    "+": "PLUS",
    "-": "MINUS",
    "*": "STAR",
    "/": "SLASH",
    "%": "PERCENT",
    "?": "QMARK",
    "!": "BANG",
    "=": "EQUAL",
}
_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<bytes>[xX]'[0-9A-Fa-f]*')
      | (?P<string>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")+")
      | (?P<number>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+)
      | (?P<word>[^\W\d]\w*)
      | (?P<compare><=|>=|<>|!=|<|>)
      | (?P<sign>[;,.:()\[\]{}+\-*/%?!=])""",
    re.VERBOSE | re.DOTALL,
)
_HYPHENED = re.compile(r"[^\W\d]\w*(?:-[^\W\d]\w*)*")
# In SQL, a hyphen before CASE … WHEN is a minus sign, after a dotted name, too.
_SQL_DOTTED = re.compile(
    r"""[^\W\d]\w*(?:-(?!CASE\s(?:[^;'"()]*\s)?WHEN\s)[^\W\d]\w*)*""", re.IGNORECASE
)
_SQL_BEGINS = re.compile(r"\(\s*(?:SELECT|WITH)\b", re.IGNORECASE)
_NEXT = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(.?)", re.DOTALL)
_SQL_PIECE = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | \$(\w*)\$.*?\$\1\$
      | [^\W\d][\w$]* | \d+\.? | \s+ | .""",
    re.VERBOSE | re.DOTALL,
)


class TokenLexer(Lexer):
    """Adapter that passes tokens made in advance to Lark."""

    def __init__(self, _: Any):
        pass

    def lex(self, made: Any) -> Iterator[Token]:  # type: ignore[override]  # the older interface
        """Yield the tokens made by `tokens`."""
        yield from made


def tokens(source: SourceText, start: int = 0, end: int | None = None) -> list[Token]:
    """Return the tokens of a text, or of a piece of it; O(length).

    Raises
    ------
    RuleSyntaxError
        At a character that begins no token, or a string, comment or bracket without an end.
    """
    text, stop = source.text, len(source.text) if end is None else end
    found: list[Token] = []
    at, in_brackets = start, False
    while at < stop:
        match = _TOKEN.match(text, at, stop)
        if match is None or (match.group() == "/" and text.startswith("/*", at)):
            raise source.error(at, _unfinished(text, at))
        kind, value = match.lastgroup, match.group()
        last = found[-1].type if found else ""
        begin, at = at, match.end()
        if kind == "space":
            continue
        if kind == "word":
            if last == "DOT" or in_brackets:
                longer = _HYPHENED.match(text, begin, stop)
                assert longer is not None
                value, at, type_ = longer.group(), longer.end(), "NAME"
            else:
                type_ = _word_type(value, last, text, at, stop)
        elif kind == "quoted":
            value, type_ = value[1:-1].replace('""', '"'), "NAME"
        elif kind == "sign":
            type_ = _SIGNS[value]
            if type_ == "LPAR" and _SQL_BEGINS.match(text, begin, stop):
                at = skip_sql(source, begin + 1, stop, ")")
                value, type_, begin = text[begin + 1 : at], "SQL", begin + 1
                found.append(_token(type_, value, begin))
                at += 1
                continue
            in_brackets = type_ == "LSQB" or (in_brackets and type_ != "RSQB")
        else:
            assert kind is not None
            type_ = kind.upper()
            if kind == "string":
                value = value[1:-1].replace("''", "'")
            elif value == "<>":
                value = "!="
        found.append(_token(type_, value, begin))
        if type_ == "BEGIN":
            body_end = skip_sql(source, at, stop, "END")
            found.append(_token("BODY", text[at:body_end], at))
            at = body_end
    return found


def skip_sql(source: SourceText, start: int, stop: int, closer: str) -> int:
    """Return the offset where a piece of SQL ends: before its closing bracket, word or semicolon.

    Strings, comments, brackets, CASE … END and the names after dots in it are skipped. A piece that
    ends with ";" may end with the text, too.
    """
    text, at, depth, is_dotted = source.text, start, 0, False
    while at < stop:
        name = _SQL_DOTTED.match(text, at, stop) if is_dotted else None
        match = name or _SQL_PIECE.match(text, at, stop)
        assert match is not None
        piece = match.group()
        if not (piece.isspace() or piece.startswith(("--", "/*"))):
            is_dotted = piece == "."
        word = "" if name else piece.upper()
        if depth == 0 and word == closer:
            return at
        if word in ("(", "CASE"):
            depth += 1
        elif word in (")", "END"):
            depth -= 1
            if depth < 0:
                raise source.error(at, f"{piece} closes nothing")
        elif piece in ("'", '"') or (piece == "/" and text.startswith("/*", at)):
            raise source.error(at, _unfinished(text, at))
        at = match.end()
    if closer == ";" and depth == 0:
        return stop
    what = "BEGIN has no END" if closer == "END" else "a bracket is not closed"
    raise source.error(start - 1 if closer == ")" else start, what)


def _word_type(word: str, last: str, text: str, at: int, stop: int) -> str:
    upper = word.upper()
    if last == "SKIP":
        return "SKIP_TO" if word.lower() in ("to_first", "to_last") else "SKIP_WORD"
    if last == "TRANSACTION":
        return "NAME"  # begin and commit are not keywords there
    if upper in KEYWORDS:
        return upper
    if (upper in _AGGREGATES and last not in _BEFORE_NAMES) or upper in _TYPES:
        follows = _NEXT.match(text, at, stop)
        sign = "(" if upper in _AGGREGATES else "'"
        if follows is not None and follows.group(1) == sign:
            return "AGGREGATE" if upper in _AGGREGATES else "TYPED"
    return "NAME"


def _unfinished(text: str, at: int) -> str:
    if text[at] == "'":
        return "a string that has no end: write another '"
    if text[at] == '"':
        return 'a quoted name that has no end, or is empty: write "name"'
    if text.startswith("/*", at):
        return "a comment that has no end: write */"
    return f"the character {text[at]!r} has no meaning here"


def _token(type_: str, value: str, begin: int) -> Token:
    return Token(type_, value, start_pos=begin)


# -- parser from text to parse trees, with errors that list the expected words ---------------------


STARTS = ("script", "one_pattern", "one_term", "one_action")
_SHOWN = {
    "NAME": "a name",
    "STRING": "a string",
    "NUMBER": "a number",
    "COMPARE": "a comparison",
    "SQL": "(SELECT …)",
    "BODY": "statements",
    "SKIP_WORD": "past_last, to_next, to_first or to_last",
    "AGGREGATE": "an aggregate",
    "SEMICOLON": "';'",
    "COMMA": "','",
    "DOT": "'.'",
    "COLON": "':'",
    "LPAR": "'('",
    "RPAR": "')'",
    "LSQB": "'['",
    "RSQB": "']'",
    "LBRACE": "'{'",
    "RBRACE": "'}'",
    "EQUAL": "'='",
    "PLUS": "'+'",
    "MINUS": "'-'",
    "STAR": "'*'",
    "SLASH": "'/'",
    "PERCENT": "'%'",
    "QMARK": "'?'",
    "BANG": "'!'",
    "$END": "the end",
}
_SHOWN_MAX = 8
_DEPTH_MAX = 150  # each level takes several stack frames of Python, whose limit is 1000
_UNSAID = frozenset(("BYTES", "TYPED", "SKIP_TO"))
_OPERATORS = frozenset(("PLUS", "MINUS", "STAR", "SLASH", "PERCENT", "QMARK", "LBRACE"))
_SOFT = frozenset(
    """
    ABORT ACTION CONDITION COUPLING DISABLE EACH ENABLE EVENT FULL MANY MATCHES OFFSET PARTIALS
    PRIORITY QUERY REPLACE ROW RULE SET STATEMENT UNCERTAIN ZONE
    """.split()  # noqa: SIM905
)


@cache
def _lark() -> Lark:
    grammar = files("activedb.language").joinpath("grammar.lark").read_text("utf-8")
    return Lark(
        grammar,
        parser="lalr",
        lexer=TokenLexer,
        start=list(STARTS),
        maybe_placeholders=False,
        propagate_positions=True,
    )


def parse_tree(
    source: SourceText, start: str, begin: int = 0, end: int | None = None
) -> Tree[Token]:
    """Return the tree of a text, or of a piece of it, from one of `STARTS`.

    Raises
    ------
    RuleSyntaxError
        At the first word that is not allowed there.
    """
    made: Any = tokens(source, begin, end)
    try:
        tree = _lark().parse(made, start=start)
    except UnexpectedToken as error:
        token = error.token
        # More exact than error.expected; Lark does not type it.
        accepts: set[str] = error.interactive_parser.accepts()  # type: ignore[no-untyped-call]
        if token.type == "$END":
            stop = len(source.text) if end is None else end
            offset = len(source.text[:stop].rstrip())
            raise source.error(offset, f"expected {_expected(accepts)}, found the end") from None
        assert token.start_pos is not None
        raise source.error(token.start_pos, _unexpected(token, accepts)) from None
    _check_depth(source, tree)
    return tree


def start_of(tree: Any) -> int:
    """Return the offset of a tree's first word, or of a token; 0 if a tree has no words."""
    return getattr(tree if isinstance(tree, Token) else tree.meta, "start_pos", 0) or 0


def _check_depth(source: SourceText, tree: Tree[Token]) -> None:
    """Refuse trees nested so deeply that Python's stack would overflow; O(size)."""
    level, depth = [tree], 0
    while level:
        if depth > _DEPTH_MAX:
            raise source.error(start_of(level[0]), "this is nested too deeply")
        level = [child for each in level for child in each.children if isinstance(child, Tree)]
        depth += 1


def _unexpected(token: Token, accepts: set[str]) -> str:
    shown = token.type if token.type in KEYWORDS else repr(str(token))
    said = f"expected {_expected(accepts)}, found {shown}"
    if token.type == "NAME":
        near = did_you_mean(str(token).upper(), accepts & KEYWORDS)
        if near.startswith("did you mean"):
            said += f"; {near}"
    elif token.type in KEYWORDS and "NAME" in accepts:
        said += f' (as a name write "{token}")'
    return said


def _expected(accepts: set[str]) -> str:
    """Return the words that are allowed, with operators only if there are no others."""
    shown = accepts - _UNSAID
    if "NAME" in shown:
        shown -= _SOFT
    if shown - _OPERATORS:
        shown -= _OPERATORS
    words = sorted(_SHOWN.get(type_, type_) for type_ in shown)
    if len(words) > _SHOWN_MAX:
        first = [word for word in ("a name", "a number", "a string") if word in words]
        rest = [word for word in words if word not in first]
        words = [*first, *rest][:_SHOWN_MAX]
        return f"{', '.join(words)} or another word"
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
