"""Sources put together at random: effects seen when they run are found, or the rule is opaque."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from activedb.analysis import Effects, Profile
from activedb.events import event
from activedb.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType

SEED = int(os.environ["ACTIVEDB_TEST_SEED"])
DRAWN = 400

HEAD = """
import contextlib
import functools
import operator

from tests.analysis.sources import log


class Database:
    def __init__(self, seen):
        self.seen = seen

    def signal(self, name, **params):
        self.seen.append(f"raises {name}")

    def transaction(self): ...

    def rule(self, **options): ...


seen = []
db = Database(seen)


def around(function):
    return functools.wraps(function)(lambda *args: function(*args))


def hit(*args):
    return db.signal("hit")


def pick(first, *others, **named):
    return (*others, *named.values(), first)[0]


def first_of(place, *functions):
    return functions[0]()


class Keeper:
    def hit(self):
        return hit()

    @property
    def seen(self):
        return hit()

    @classmethod
    def whole(cls):
        return hit()

    @staticmethod
    def fixed():
        return hit()

    @functools.cache
    def remembered(self):
        return hit()

    @functools.cached_property
    def kept(self):
        return hit()


class Silent:
    def write(self, text): ...


class Eager:
    def __init__(self):
        hit()


class Operated:
    def __add__(self, other):
        return hit()

    __radd__ = __iadd__ = __eq__ = __lt__ = __contains__ = __getitem__ = __delitem__ = __add__

    def __bool__(self):
        return bool(hit())

    def __len__(self):
        return len([hit()])

    def __iter__(self):
        yield hit()

    def __neg__(self):
        return hit

    def __str__(self):
        return str(hit())

    def __hash__(self):
        return hash(hit())

    def __index__(self):
        return len([hit()])

    __enter__ = __neg__
    plus = __add__

    def __exit__(self, *error): ...

    def __setitem__(self, key, value):
        hit()

    def __getattr__(self, name):
        return hit()

    def __setattr__(self, name, value):
        hit()


class Putting:
    def __add__(self, other):
        return other.insert(log, {})

    __radd__ = __iadd__ = __eq__ = __contains__ = __getitem__ = __add__


class Described:
    def __get__(self, thing, kind):
        return hit()


class Describing:
    described = Described()


class Child(Keeper):
    def hit(self):
        return super().hit()


@functools.lru_cache
def cached():
    return hit()


@contextlib.contextmanager
def opened():
    yield hit()


decorated = around(hit)
HIT = functools.partial(db.signal, "hit")
AGAIN = functools.partial(HIT, times=2)
METHOD = db.signal
HITS = [hit, HIT]
BY_NAME = {"hit": hit}
BY_LETTER = {"n": "hit"}
NAMES = ["hit", "miss"]
keeper = Keeper()
child = Child()
operated = Operated()
putting = Putting()
describing = Describing()
describing.inside = Operated()


"""

# Expressions with one effect: through the transaction, or the database.
BASES = """
t.insert(log, {})
db.signal("hit")
hit()
HIT()
AGAIN()
METHOD("hit")
HITS[0]()
HITS[1:][0]()
HITS[slice(1)][0]()
(HITS + [])[0]()
[*HITS][1]()
[*HITS[:1], 1][0]()
BY_NAME["hit"]()
BY_NAME.get("none", t.insert)(log, {})
BY_NAME.get(operated)
{**BY_NAME}["hit"]()
pick(1, **BY_NAME)()
first_of(*[0, hit])
keeper.hit()
keeper.seen
keeper.kept
child.hit()
Keeper().hit()
Keeper.hit(keeper)
Keeper.whole()
Keeper().fixed()
keeper.remembered()
Keeper().remembered()
Eager()
getattr(keeper, "hit")()
getattr(t, "insert")(log, {})
hit.__call__()
(lambda: hit()).__call__()
f"{t.insert(log, {})!r}"
f"{1:{HIT() or ''}}"
cached()
decorated()
opened().__enter__()
operated + 1
1 + operated
[*HITS, operated][-1] + 1
operated < 1
1 == operated
[1] == [operated]
1 in operated
1 in (2, operated)
-operated
(-operated)()
not operated
operated and 1
1 if operated else 2
operated[0]
[1, 2][operated]
[1, 2][operated:]
{operated}
{operated: 1}
[n for n in operated]
[1 for n in [1] if operated]
[*operated]
pick(*operated)
f"{operated}"
len(operated)
list(operated)
sorted([operated, operated])
operated.missing
putting + t
t + putting
putting[t]
t == putting
t in putting
[t] == [putting]
describing.described
functools.partial(t.insert, log)({})
functools.partial(functools.partial(t.insert, log), {})()
functools.partial(db.signal, "hit")()
functools.partial(hit)()
functools.partial(*[hit])()
t.insert.__call__(log, {})
[t][:][0].insert(log, {})
[t][slice(None)][0].insert(log, {})
[[[t.insert]]][0][0][0](log, {})
[[[t]]][0][0][0].insert(log, {})
{"a": t.insert}["a"](log, {})
{"a": t.insert}.get("a")(log, {})
{"a": t}.get.__call__("a").insert(log, {})
[t].copy().pop().insert(log, {})
next(iter([t.insert]))(log, {})
list(enumerate([t]))[0][1].insert(log, {})
[f(log, {}) for n, f in {"a": t.insert}.items()]
[f() for n, (m, f) in enumerate(BY_NAME.items())]
[f() for n, (m, f) in enumerate(sorted({"a": hit}.items()))]
[f(log, {}) for n, f in enumerate([t.insert])]
[hit() for hit in [hit]]
[hit for hit in ()] or hit()
{s.insert(log, {}) and 1 for s in [t]}
{n: s.insert(log, {}) for n, s in zip([1], [t])}
list(s.insert(log, {}) for s in (t,))
list(map(t.insert, [log], [{}]))
list(map(lambda s: s.insert(log, {}), [t]))
next(map(lambda n: hit, [1]))()
max([t, t], key=lambda s: s.insert(log, {}) or 1)
[t, t].sort(key=lambda s: s.insert(log, {}) or 1)
(s := t).insert(log, {})
(lambda s=t: s.insert(log, {}))()
(lambda *s: s[0].insert(log, {}))(t)
(lambda **s: s["s"].insert(log, {}))(s=t)
(lambda *, f=hit: f())()
operator.methodcaller("insert", log, {})(t)
operator.itemgetter(0)([t]).insert(log, {})
dict(t=t)["t"].insert(log, {})
vars()["t"].insert(log, {})
(t if o else None).insert(log, {})
(None or t).insert(log, {})
(1 and t.insert)(log, {})
t.spawn(lambda s: s.insert(log, {}))
t.spawn(*[lambda s, f=None: f(), hit])
t.spawn(function=lambda s: s.insert(log, {}))
"""

# Expressions around another, which stands for X.
AROUND = """
(X, 1)[0]
[*[X]]
{"a": X}
{"a": 1, **{"b": X}}
(lambda f: f"{f()}")(lambda: X)
(lambda f: f"{1:{f() or ''}}")(lambda: X)
(X if o else X)
(1 if X else 2)
(X or 1)
not X
(X, X) == 1
1 < 2 < len([X])
(lambda: X)()
(lambda x=X: 1)
(lambda *, x=X: 1)
(lambda x=(y := X): y)()
(y := X)
[X for n in [1]]
[1 for n in [X]]
[n for n in [1] if X]
{X: n for n in [1]} if False else [X]
"abc"[len([X]):]
[1, 2][:len([X])]
str(X)
print(X, end="", file=Silent())
pick(X)
pick(1, *[X])
pick(1, n=X)
pick(1, **{"n": X})
list(n for n in [X])
"""

# Statements with an expression, which stands for X.
STATEMENTS = """
X
---
return X
---
x = X
---
x: int = X
---
x, *y = 1, X
---
x = [0]
x[len([X]) - 1] = 1
---
x = [0]
x[len([X]) - 1] += 1
---
x = [0]
x[len([X]) - 1]: int = 1
---
x = []
x += [X]
---
Keeper.x = X
---
x = [0]
del x[len([X]) - 1]
---
assert [X]
---
try:
    raise ValueError(X)
except ValueError:
    pass
---
try:
    raise ValueError from (X and None)
except ValueError:
    pass
---
try:
    raise ValueError
except (X and KeyError) or ValueError:
    pass
---
try:
    raise ValueError
except ValueError:
    X
---
try:
    pass
except ValueError:
    pass
else:
    X
---
try:
    pass
finally:
    X
---
try:
    raise ExceptionGroup("", [ValueError()])
except* ValueError:
    X
---
for n in [X]:
    pass
---
x = [0]
for x[len([X]) - 1] in [1]:
    pass
---
for n in []:
    pass
else:
    X
---
while [X]:
    break
---
n = 1
while n:
    n = 0
else:
    X
---
if X:
    pass
---
if 0:
    pass
elif [X]:
    pass
---
with contextlib.nullcontext(X):
    pass
---
with contextlib.nullcontext(1) as x, contextlib.nullcontext(X) as y:
    pass
---
x = [0]
with contextlib.nullcontext(1) as x[len([X]) - 1]:
    pass
---
with opened():
    X
---
operated[0] = X
---
operated.x = X
---
del operated[0]
X
---
x = operated
x += 1
X
---
x = putting
x += t
X
---
describing.inside += 1
X
---
keeper.seen += 1
---
x, y = operated
X
---
for x in operated:
    X
---
with operated as x:
    x()
    X
---
if operated:
    pass
X
---
while operated:
    break
X
---
assert operated
X
---
match X:
    case _:
        pass
---
match 1:
    case n if [X]:
        pass
---
match 1:
    case 1:
        X
---
def g(x=X): ...
---
def g(*, x=X): ...
---
def g(x: X, /): ...
---
def g(*x: X, **y: X): ...
---
def g() -> X: ...
---
def g(x=(y := X)):
    return y
g()
---
async def g(x=X): ...
---
@functools.partial(pick, X or 1)
def g(): ...
---
@around
def g():
    X
g()
---
@functools.cache
def g():
    X
g()
---
def g():
    yield X
list(g())
---
def g():
    yield from [X]
list(g())
---
def g():
    n = yield
    X
list(g())
---
def g():
    def f():
        return X
    return f
g()()
---
def g():
    nonlocal x
    x = lambda: X
x = None
g()
x()
---
global made
def made():
    X
made()
---
global made
made = [lambda: X]
made += [made[0]]
made[-1]()
---
class C:
    x = X
---
class C(pick(object, *[object for n in [X]])): ...
---
match [lambda: X]:
    case [f]:
        f()
---
match {"f": lambda: X}:
    case {**rest}:
        rest["f"]()
---
x = [None]
y = x
y[0] = t
x[0].insert(log, {})
---
x = [None]
y = x
y[0] = lambda: X
x[0]()
---
x = {}
x.setdefault("f", lambda: X)()
---
x = ["miss"]
y = x
y.append("hit")
[db.signal(n) for n in x]
X
---
x = ["miss"]
y = x
y += ["hit"]
[db.signal(n) for n in x]
X
---
x = {"n": "miss"}
y = x
y["n"] = "hit"
db.signal(x["n"])
X
---
x = [["miss"]]
for y in x:
    y.append("hit")
db.signal(x[0][1])
X
---
y = ["miss"]
x = {1: y}
y.append("hit")
db.signal(x[1][1])
X
---
x = ["miss"]
(x if o else None).append("hit")
db.signal(x[1])
X
---
x = list(("miss",))
y = x
y.insert(0, "hit")
db.signal(x[0])
X
---
def g(x):
    x.append("hit")
x = ["miss"]
g(x)
db.signal(x[1])
X
---
def g(x=["miss"]):
    return x
g().append("hit")
db.signal(g()[1])
X
---
x = ["miss"]
g = lambda: x
g().append("hit")
db.signal(x[1])
X
---
*x, y = "miss", 1
y = x
y.append("hit")
db.signal(x[1])
X
---
x = ["miss"] + []
x.append("hit")
db.signal(x[1])
X
---
x = []
y = ["miss"]
x.append(y)
y.append("hit")
db.signal(x[0][1])
X
---
x = []
y = ["miss"]
x.append(y)
x[0].append("hit")
db.signal(y[1])
X
---
y = ["miss"]
x = [y] * 2
x[0].append("hit")
db.signal(y[1])
X
---
def g(*x):
    x[0].append("hit")
y = ["miss"]
g(y)
db.signal(y[1])
X
---
def g(**x):
    x["y"].append("hit")
y = ["miss"]
g(y=y)
db.signal(y[1])
X
---
x = {}
x.setdefault("n", ["miss"]).append("hit")
db.signal(x["n"][1])
X
---
x = {"n": ["miss"]}
for y in x.values():
    y.append("hit")
db.signal(x["n"][1])
X
---
x = ["miss"]
x[:] = NAMES
db.signal(x[0])
X
---
x = {"n": "miss"}
x.update(n="hit")
db.signal(x["n"])
X
---
x = {"n": "miss"}
x.update(BY_LETTER)
db.signal(x["n"])
X
---
x = NAMES[1:]
x.append("hit")
db.signal(x[1])
X
---
for n in range(2):
    if n:
        f()
    f = lambda: X
"""


class Recording:
    """A transaction that records what is done with it."""

    def __init__(self, seen: list[str]):
        self._seen = seen

    def insert(self, table: Any, row: Any) -> int:
        self._seen.append(f"inserts into {table.name}")
        return 1

    def spawn(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(self, *args)


def lines_of(text: str, separator: str = "\n") -> list[str]:
    return [each.strip() for each in text.split(separator) if each.strip()]


def sources() -> Iterator[str]:
    """Each part once in the simplest company, then parts drawn at random."""
    bases, around, statements = lines_of(BASES), lines_of(AROUND), lines_of(STATEMENTS, "---\n")
    yield from (f"return {base}" for base in bases)
    yield from (f"return {each}".replace("X", "t.insert(log, {})") for each in around)
    yield from (each.replace("X", base) for each in statements for base in bases[:3])
    draw = random.Random(f"{SEED}/sources")
    for _ in range(DRAWN):
        expression = draw.choice(bases)
        for _ in range(draw.randrange(3)):
            expression = draw.choice(around).replace("X", f"({expression})")
        yield draw.choice(statements).replace("X", f"({expression})")


def action_of(number: int, body: str) -> str:
    return f"def action_{number}(t, o):\n{textwrap.indent(body, '    ')}\n"


def is_python(body: str) -> bool:
    """Return whether parts fit together: ``:=`` is not allowed everywhere."""
    try:
        compile(action_of(0, body), "", "exec")
    except SyntaxError:
        return False
    return True


def module_of(bodies: list[str], path: Path) -> ModuleType:
    """Return a module with an action for each body."""
    path.write_text(HEAD + "\n\n".join(action_of(*each) for each in enumerate(bodies)))
    spec = importlib.util.spec_from_file_location("drawn_sources", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def effects_of(action: Callable[..., Any]) -> Effects:
    rule = Rule.define(
        action,
        on=event("E"),
        when=None,
        coupling="immediate",
        priority=None,
        on_abort="rule",
        name="rule",
    )
    return Profile.of(rule).effects


@pytest.mark.long
def test_each_effect_of_a_drawn_source_is_found_or_the_rule_is_opaque(tmp_path: Path) -> None:
    bodies = list(dict.fromkeys(filter(is_python, sources())))
    module = module_of(bodies, tmp_path / "drawn_sources.py")
    missed = []
    with_effects = 0
    for place, body in enumerate(bodies):
        action = getattr(module, f"action_{place}")
        effects = effects_of(action)
        module.seen.clear()
        module.cached.cache_clear()
        module.Keeper.remembered.cache_clear()
        vars(module.keeper).pop("kept", None)
        with contextlib.suppress(Exception):  # effects before an error count, too
            action(Recording(module.seen), object())
        with_effects += bool(module.seen)
        found = {str(each) for each in (*effects.changes, *effects.signals)}
        if not effects.is_opaque and not found.issuperset(module.seen):
            missed.append(body)
    assert missed == []
    assert with_effects > len(bodies) * 0.8
