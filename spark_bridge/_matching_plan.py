"""Plan of matching on Spark's executors: rules and keys, with its state in the checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from activedb.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from activedb.streams import KeyedRule, Matchable

_BUCKETS_EACH = 4
"""Buckets for each of Spark's partitions: Spark distributes them by their hash."""


@dataclass(frozen=True)
class MatchingPlan:
    """Rules to match on executors, with their keys; sent to the executors.

    Attributes
    ----------
    stream : str
    groups : tuple of (str, tuple of KeyedRule)
        The parameter that is the key, and the rules that are matched by it, in the order of
        definition. Spark's state identifies a group by its parameter, so groups may be added and
        removed.
    buckets : int
        Number of buckets for the keys, constant for the life of the checkpoint.
    passed : frozenset of str
        Event types of which all rows pass on to the process that runs the actions.
    reached : tuple of (int, int)
        Pairs of a batch and a moment, in the order of batches: from that batch on, all events
        before the moment count as processed, whatever Spark's watermark is.
    since : mapping of str to int
        The micro-batch with which each rule began: it ignores rows of earlier ones.
    """

    stream: str
    groups: tuple[tuple[str, tuple[KeyedRule, ...]], ...]
    buckets: int
    passed: frozenset[str]
    reached: tuple[tuple[int, int], ...]
    since: Mapping[str, int]

    @property
    def rules(self) -> dict[str, str]:
        """The rules' names, with the fingerprints of their events."""
        return {rule.name: rule.event for _, rules in self.groups for rule in rules}

    def rules_of(self, key: str) -> tuple[KeyedRule, ...]:
        """Return the rules that are matched by a parameter; none for one of an earlier feed."""
        return next((rules for name, rules in self.groups if name == key), ())

    def reached_us(self, batch_id: int) -> int | None:
        """Return the time before which all was processed when this batch began; None: unknown."""
        return max((us for first, us in self.reached if first <= batch_id), default=None)


def plan_of(
    stream: str, matchable: Matchable, state: MatchingState, *, batch_id: int
) -> tuple[MatchingPlan, dict[str, str]]:
    """Return the plan, and the rules that are not matched on executors with the reasons.

    Parameters
    ----------
    state : MatchingState
        State of the checkpoint.
    batch_id : int
        The micro-batch with which the query continues.
    """
    columns = state.keys
    here = dict(matchable.here)
    rules = []
    for rule in matchable.rules:
        why = None
        if not rule.attributes & {*columns}:
            names = ", ".join(sorted(rule.attributes))
            why = f"rows cannot be dealt out by {names}: not a parameter, or of a nested type"
        else:
            why = _unsendable(rule)
        if why is None:
            rules.append(rule)
        else:
            here[rule.name] = why
    groups = _grouped(rules, columns, state.by_rule)
    return MatchingPlan(
        stream=stream,
        groups=groups,
        buckets=state.buckets,
        passed=matchable.needs({rule.name for rule in rules}),
        reached=state.reached,
        since={
            rule.name: state.since_of(rule, key, batch_id)
            for key, of_key in groups
            for rule in of_key
        },
    ), here


def _grouped(
    rules: Sequence[KeyedRule], columns: Collection[str], before: Mapping[str, str]
) -> tuple[tuple[str, tuple[KeyedRule, ...]], ...]:
    """Return few groups: the parameter that is a key of most rules first. O(rules · parameters).

    A rule keeps the parameter by which it was matched before, because its state is there.
    """
    keys = {
        rule.name: before[rule.name]
        for rule in rules
        if before.get(rule.name) in rule.attributes & {*columns}
    }
    left = [rule for rule in rules if rule.name not in keys]
    while left:
        names = sorted({name for rule in left for name in rule.attributes if name in columns})
        key = max(names, key=lambda name: sum(name in rule.attributes for rule in left))
        keys |= {rule.name: key for rule in left if key in rule.attributes}
        left = [rule for rule in left if key not in rule.attributes]
    return tuple(
        (key, tuple(rule for rule in rules if keys[rule.name] == key))
        for key in dict.fromkeys(keys.values())
    )


def _unsendable(rule: KeyedRule) -> str | None:
    """Return the reason why a rule's event cannot be sent to another process; None: it can."""
    from spark_bridge._pickling import dumps

    try:
        dumps(rule)
    except Exception as error:
        return f"its predicates cannot be sent to another process: {error}"
    return None


@dataclass(frozen=True)
class MatchingState:
    """State of matching on executors, kept in the checkpoint.

    Attributes
    ----------
    buckets : int
    keys : tuple of str
        Parameters by which rows can be distributed.
    reached : tuple of (int, int)
        See `MatchingPlan`.
    by_rule : dict of str to str
        The parameter by which each rule was matched, including rules that no longer exist.
    since : dict of str to (str, int)
        For each such rule the fingerprint of its event, and the micro-batch with which it began.
    """

    buckets: int
    keys: tuple[str, ...]
    reached: tuple[tuple[int, int], ...] = ()
    by_rule: dict[str, str] = field(default_factory=dict)
    since: dict[str, tuple[str, int]] = field(default_factory=dict)

    def since_of(self, rule: KeyedRule, key: str, batch_id: int) -> int:
        """Return the micro-batch with which a rule began: `batch_id`, if it is new or changed.

        With another key it begins anew, too: its state is in other buckets.
        """
        event, first = self.since.get(rule.name, (rule.event, batch_id))
        goes_on = (event, self.by_rule.get(rule.name)) == (rule.event, key)
        return first if goes_on else batch_id

    def remembering(self, plan: MatchingPlan) -> MatchingState:
        """Return the state once a plan is in force."""
        by_rule = {rule.name: key for key, rules in plan.groups for rule in rules}
        since = {name: (event, plan.since[name]) for name, event in plan.rules.items()}
        return replace(self, by_rule=self.by_rule | by_rule, since=self.since | since)


_REACHED_MAX = 100


def begin(
    checkpoint: Path, matchable: Matchable, *, partitions: int = 1, keys: Collection[str] = ()
) -> MatchingState:
    """Read the state of a checkpoint, and record the stream's progress as a feed begins.

    Spark's watermark has not passed what the end of an earlier feed processed: events before that
    are late now.

    Parameters
    ----------
    partitions : int
        Number of Spark's partitions if the checkpoint is new; later runs keep it.
    keys : collection of str
        See `MatchingState`; empty: those of before.
    """
    path = _path(checkpoint)
    state = MatchingState(_BUCKETS_EACH * partitions, tuple(keys))
    if path.is_file():
        record = json.loads(path.read_text(encoding="utf-8"))
        reached = tuple((batch, us) for batch, us in record["reached"])
        names = state.keys or tuple(record["keys"])
        since = {name: (event, first) for name, (event, first) in record["since"].items()}
        state = MatchingState(record["buckets"], names, reached, record["by_rule"], since)
    reached_by = dict(state.reached)
    if matchable.batch_id is not None and matchable.punctuation_us is not None:
        reached_by[matchable.batch_id + 1] = matchable.punctuation_us
    state = replace(state, reached=tuple(sorted(reached_by.items())[-_REACHED_MAX:]))
    write(checkpoint, state)
    return state


def write(checkpoint: Path, state: MatchingState) -> None:
    """Write a state, before the query begins."""
    path = _path(checkpoint)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(state)), encoding="utf-8")
    new.replace(path)


def check_switch(checkpoint: Path, stream: str, *, is_elsewhere: bool, has_begun: bool) -> None:
    """Check that a feed continues as its checkpoint began: waiting events are in one of two places.

    Raises
    ------
    ConfigurationError
        If it does not.
    """
    if not has_begun:
        _path(checkpoint).unlink(missing_ok=True)  # of a feed that did not get as far as a batch
    if not has_begun or is_elsewhere == _path(checkpoint).is_file():
        return
    began, now = ("off", "on") if is_elsewhere else ("on", "off")
    raise ConfigurationError(
        f"stream {stream!r}: its checkpoint {checkpoint} began with the setting scale_out {began} "
        f"and cannot continue with it {now}: partial matches are in Spark's state, or are not. Set "
        f"it {began}, or start over with a new checkpoint and an empty database. While executors "
        "can match none of the stream's rules, it counts as off"
    )


def _path(checkpoint: Path) -> Path:
    return checkpoint / "matching" / "state.json"
