"""Terms from parse trees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lark import Token

from activedb.errors import PatternError
from activedb.events.terms import (
    Aggregate,
    And,
    Arithmetic,
    Attribute,
    Between,
    Comparison,
    Exists,
    In,
    InSubquery,
    IsNull,
    Like,
    Literal,
    Negative,
    Not,
    Or,
    Subquery,
    Term,
)
from activedb.language._names import Scope, literal_value, name_of
from activedb.language._parser import SourceText, start_of
from activedb.language._sql import subquery_of, width_of
from activedb.spelling import did_you_mean

__all__ = ["TermReader"]

Node = Any


@dataclass(slots=True)
class TermReader:
    """Reader of terms in a scope of names.

    Attributes
    ----------
    source : SourceText
    scope : Scope
    tables : mapping of str to Table, or None
        Tables that SELECTs may name.
    """

    source: SourceText
    scope: Scope
    tables: Mapping[str, Any] | None = None

    def term(self, tree: Node) -> Term:
        """Return the term of a tree.

        Raises
        ------
        RuleSyntaxError
            If a name does not exist, or the term is invalid.
        """
        make = getattr(self, f"_{tree.data.rstrip('_')}")
        try:
            made: Term = make(tree.children, tree)
        except PatternError as error:
            raise self.source.error(start_of(tree), str(error)) from None
        return made

    def conjuncts(self, tree: Node) -> tuple[tuple[Term, ...], tuple[str, ...]]:
        """Return the AND-joined conditions of a qualification, and its equivalence attributes."""
        found = tree.children if tree.data == "and_" else [tree]
        terms = tuple(self.term(each) for each in found if each.data != "equivalence")
        equal = [name_of(n) for e in found if e.data == "equivalence" for n in e.children]
        return terms, tuple(equal)

    # -- conditions ------------------------------------------------------------------------

    def _or(self, children: list[Node], _: Node) -> Term:
        return Or(tuple(map(self.term, children)))

    def _and(self, children: list[Node], _: Node) -> Term:
        return And(tuple(map(self.term, children)))

    def _not(self, children: list[Node], _: Node) -> Term:
        return Not(self.term(children[0]))

    def _comparison(self, children: list[Node], _: Node) -> Term:
        left, operator, right = children
        return Comparison(str(operator), self.term(left), self.term(right))

    def _is_null(self, children: list[Node], _: Node) -> Term:
        return self._tested(children, lambda operand: IsNull(operand))

    def _in(self, children: list[Node], _: Node) -> Term:
        def made(operand: Term, *choices: Term) -> Term:
            only = choices[0]
            if children[-1].data == "subquery" and isinstance(only, Subquery):
                return InSubquery(operand, only)
            return In(operand, choices)

        return self._tested(children, made)

    def _between(self, children: list[Node], _: Node) -> Term:
        return self._tested(children, Between)

    def _like(self, children: list[Node], _: Node) -> Term:
        return self._tested(children, Like)

    def _tested(self, children: list[Node], make: Callable[..., Term]) -> Term:
        """Return a test, negated if NOT precedes it."""
        made = make(*(self.term(child) for child in children if child.data != "no"))
        return Not(made) if any(child.data == "no" for child in children) else made

    def _exists(self, children: list[Node], _: Node) -> Term:
        return Exists(self._select(children[0]))

    def _equivalence(self, _: list[Node], tree: Node) -> Term:
        raise self.source.error(
            start_of(tree),
            "[…] demands equal values in all parts: it stands by itself or between ANDs, in the "
            "WHERE of a sequence or conjunction",
        )

    # -- values ----------------------------------------------------------------------------

    def _sum(self, children: list[Node], _: Node) -> Term:
        left, operator, right = children
        return Arithmetic(str(operator), self.term(left), self.term(right))

    _product = _sum

    def _negative(self, children: list[Node], _: Node) -> Term:
        inner = children[-1]
        if inner.data == "literal" and inner.children[0].type == "NUMBER":
            return Literal(-literal_value(self.source, inner))
        return Negative(self.term(inner))

    def _brackets(self, children: list[Node], _: Node) -> Term:
        return self.term(children[0])

    def _literal(self, _: list[Node], tree: Node) -> Term:
        return Literal(literal_value(self.source, tree))

    def _subquery(self, _: list[Node], tree: Node) -> Term:
        made = self._select(tree)
        width = width_of(made)
        if width is not None and width != 1:
            raise self.source.error(
                start_of(tree), f"a subquery that is a value has one column, not {width}"
            )
        return made

    def _select(self, tree: Node) -> Subquery:
        token: Token = tree.children[0]
        return subquery_of(self.source, start_of(token), str(token), self.scope, self.tables)

    # -- references ------------------------------------------------------------------------

    def _reference(self, children: list[Node], tree: Node) -> Attribute:
        names = [name_of(child) for child in children]
        if len(names) == 1:
            if self.scope.is_of_one:
                self._check_attribute("NEW", names[0], tree)
                return Attribute(None, names[0])
            raise self.source.error(
                start_of(tree),
                f"say of which event {names[0]!r} is an attribute: write "
                f"{' or '.join(f'{name}.{names[0]}' for name in self.scope.names[:3])}",
            )
        name, attribute = names
        # In quotes, NEW and OLD are ordinary names; as keywords they are read as `this`.
        is_part = name in ("NEW", "OLD")
        found = (self.scope.part if is_part else self.scope.attribute)(name, attribute)
        if found is None:
            near = did_you_mean(name, self.scope.names)
            raise self.source.error(start_of(tree), f"there is no event {name!r} here; {near}")
        self._check_attribute(name, attribute, children[1])
        return found

    def _check_attribute(self, name: str, attribute: str, tree: Node) -> None:
        known = self.scope.unknown_attribute(name, attribute)
        if known is not None:
            raise self.source.error(
                start_of(tree),
                f"{name} has no attribute {attribute!r}; {did_you_mean(attribute, known)}",
            )

    def _this(self, children: list[Node], tree: Node) -> Attribute:
        return self._transition("NEW", children, tree, self.scope.this)

    def _this_old(self, children: list[Node], tree: Node) -> Attribute:
        return self._transition("OLD", children, tree, self.scope.old)

    def _transition(
        self, word: str, children: list[Node], tree: Node, known: frozenset[str]
    ) -> Attribute:
        if word not in known:
            raise self.source.error(
                start_of(tree),
                f"{word} is the event itself, and here there are several, or it has another name: "
                f"write one of {', '.join(self.scope.names)}",
            )
        attribute = name_of(children[0])
        self._check_attribute(word, attribute, children[0])
        return Attribute(None, attribute, old=word == "OLD")

    def _old(self, children: list[Node], tree: Node) -> Attribute:
        of = self.term(children[0])
        assert isinstance(of, Attribute)
        return Attribute(of.part, of.name, old=True)

    def _aggregate(self, children: list[Node], tree: Node) -> Term:
        function, of = str(children[0]).lower(), children[1]
        if function == "count" and of.data == "reference" and len(of.children) == 1:
            part = name_of(of.children[0])
            known = self.scope.parts
            if known is not None and part not in known:
                near = did_you_mean(part, known)
                raise self.source.error(start_of(of), f"there is no part {part!r} here; {near}")
            return Aggregate("count", part, None)
        attribute = self.term(of)
        assert isinstance(attribute, Attribute)
        if attribute.part is None:
            raise self.source.error(
                start_of(of), f"{function.upper()} is over the elements of a part: name the part"
            )
        return Aggregate(function, attribute.part, attribute.name, attribute.old)
