"""Parser from text to parse trees, with errors that list the expected words."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedToken

from activedb.language._lexer import KEYWORDS, TokenLexer, tokens
from activedb.language._source import Source
from activedb.spelling import did_you_mean

__all__ = ["STARTS", "parse_tree", "start_of"]

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


def parse_tree(source: Source, start: str, begin: int = 0, end: int | None = None) -> Tree[Token]:
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


def _check_depth(source: Source, tree: Tree[Token]) -> None:
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
