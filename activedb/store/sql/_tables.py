"""Metadata of tables for the layers above: name, key, columns, complete rows, keyed values."""

from __future__ import annotations

import datetime
import json
import math
import reprlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import partial
from operator import itemgetter
from types import MappingProxyType
from typing import Any, TypeAlias

from sqlalchemy import (
    ARRAY,
    CHAR,
    JSON,
    REAL,
    BindParameter,
    Boolean,
    Column,
    Date,
    DateTime,
    Dialect,
    Double,
    Enum,
    Float,
    Integer,
    Interval,
    LargeBinary,
    Numeric,
    Select,
    String,
    Table,
    Time,
    TypeDecorator,
    UniqueConstraint,
    Uuid,
    bindparam,
    inspect,
    select,
    tuple_,
)
from sqlalchemy import Sequence as Numbers
from sqlalchemy.dialects.postgresql import (
    CIDR,
    CITEXT,
    INET,
    INTERVAL,
    MACADDR,
    MACADDR8,
)
from sqlalchemy.dialects.postgresql import dialect as postgres_dialect
from sqlalchemy.exc import NoInspectionAvailable

from activedb.errors import DefinitionError, InvalidRow, UnknownColumn
from activedb.spelling import nearest
from activedb.store.sql._defaults import Default, default_of_column, processed
from activedb.values import IMMUTABLE, NamedValues, copied

__all__ = [
    "Key",
    "KeyedValues",
    "Row",
    "TableSpec",
    "Tables",
    "decimal_form",
    "differ",
    "instant",
    "is_storable",
]


Row: TypeAlias = Mapping[str, Any]
"""A read-only mapping, column name to value."""

Key: TypeAlias = tuple[Any, ...]
"""Values of the primary key, in column order; always a tuple."""

_CHECKED: tuple[tuple[type[Any], type[Any] | tuple[type[Any], ...]], ...] = (
    (Boolean, bool),
    (Integer, int),
    (Float, (int, float)),
    (Numeric, (int, float, Decimal)),
    (String, str),
    (DateTime, datetime.datetime),
    (Date, datetime.date),
    (Time, datetime.time),
    (Interval, datetime.timedelta),
    (LargeBinary, (bytes, bytearray, memoryview)),
    (Uuid, (uuid.UUID, str)),
    (ARRAY, (list, tuple)),
)
_POSTGRES: Dialect = postgres_dialect()  # type: ignore[no-untyped-call]
_OUTERMOST_YEARS = (datetime.MINYEAR, datetime.MAXYEAR)
_LONGEST = Context(prec=150_000)  # digits: more than a NUMERIC has
_MICROSECONDS = 6
_SINGLE_BITS = 24  # a float of at most this precision is a float4


class Tables:
    """Tables used so far, by Table or mapped class.

    Parameters
    ----------
    schema : str, optional
        Schema of tables that are declared without one.
    dialect : sqlalchemy.Dialect
        That of the database.
    """

    def __init__(self, schema: str = "", dialect: Dialect = _POSTGRES) -> None:
        self._schema = schema
        self._dialect = dialect
        self._of_place: dict[tuple[str, str], TableSpec] = {}  # by schema and name
        self._specs: dict[Any, TableSpec] = {}
        self._named: dict[str, TableSpec] = {}

    def spec(self, table: Any) -> TableSpec:
        """Return the spec of a SQLAlchemy Table or mapped class; O(1) after the first call.

        Tables of one name, in several MetaData, have one spec; so have those with and without the
        name of the default schema.

        Raises
        ------
        DefinitionError
            If it is neither, or has no primary key, or other columns than a table of the same name.
        """
        try:
            return self._specs[table]
        except (KeyError, TypeError):
            plain = _plain_table(table)
            spec = self._specs.get(plain) or self._of_same_name(plain)
            if spec is None:
                spec = TableSpec(plain, self._dialect)
            place = self._place(plain)
            self._specs[plain] = self._specs[table] = self._of_place[place] = spec
            if place[0] == self._schema:
                self._named.setdefault(".".join(place), spec)
                self._named.setdefault(place[1], spec)
            self._named[str(plain.fullname)] = spec
            return spec

    def _of_same_name(self, table: Table) -> TableSpec | None:
        spec = self._of_place.get(self._place(table))
        if spec is not None and set(spec.table.columns.keys()) != set(table.columns.keys()):
            raise DefinitionError(
                f"table {spec.name}: two Tables of this name have different columns, "
                f"{', '.join(spec.table.columns.keys())} and {', '.join(table.columns.keys())}; "
                f"declare it once"
            )
        return spec

    def named(self, name: str) -> TableSpec | None:
        """Return the spec of a table used before, by its full name, or None."""
        return self._named.get(name)

    def _place(self, table: Table) -> tuple[str, str]:
        """Return the schema and the name of a table."""
        return str(table.schema or self._schema), str(table.name)


class TableSpec:
    """SQLAlchemy table as transactions see it: rows by primary key.

    Parameters
    ----------
    table : sqlalchemy.Table
    dialect : sqlalchemy.Dialect
        That of the database. SQLite keeps all numbers with a fraction as doubles, and no NaN.

    Attributes
    ----------
    name : str
        The table's full name, also its lock resource.
    table : sqlalchemy.Table
        The table itself.
    key_columns : tuple of str
        Names of the primary key's columns, in column order.
    key_constraint : str
        Name of the primary key's constraint on the server.
    unique_keys : tuple of tuple of str
        Names of the columns of each unique constraint.
    has_mutable : bool
        True if values of some column may be changed in place.
    generated : tuple of str
        Names of the columns whose numbers the database generates: a key, identities, sequences.
    overrides_identity : bool
        True if the server takes explicit numbers for one of them only with OVERRIDING SYSTEM VALUE
        (GENERATED ALWAYS).
    written : tuple of str
        Columns that a write gives values to; the database computes the others, which are None in
        uncommitted rows.
    values_of : callable
        Return the tuple of a row's values in those columns.
    inexact : tuple of str
        Columns of which Python may not hold each value: one that was only read is not written.
    defaults, onupdates : dict
        Column name to the value that an insert, or an update, writes if it leaves the column out:
        a function of the given values, or a SELECT for the server.
    shared_select, exclusive_select : sqlalchemy.Select
        Rows whose keys are bound to ``keys``, locked FOR SHARE or FOR UPDATE.
    free_select, plain_select : sqlalchemy.Select
        The same rows, locked FOR UPDATE except those locked by others, or not locked.
    """

    def __init__(self, table: Table, dialect: Dialect = _POSTGRES):
        if not table.primary_key.columns:
            raise DefinitionError(
                f"table {table.fullname} has no primary key; rows are locked and versioned by "
                f"primary key, so declare one"
            )
        self.table = table
        self.name = str(table.fullname)
        self.key_columns = tuple(str(c.name) for c in table.primary_key.columns)
        self.unique_keys = tuple(_unique_keys(table))
        self._lengths = {
            str(c.name): c.type.length
            for c in table.columns
            if isinstance(c.type, String) and c.type.length is not None
        }
        self.key_constraint = str(table.primary_key.name or f"{table.name}_pkey")
        self._columns: dict[str, Column[Any]] = {str(c.name): c for c in table.columns}
        self._renamed = next((c for c in table.columns if c.key != c.name), None)
        self._types = {str(c.name): _python_types_of(c.type) for c in table.columns}
        self.has_mutable = None in self._types.values() or any(
            isinstance(c.type, ARRAY) for c in table.columns
        )
        self._has_int_key = [self._types[name] for name in self.key_columns] == [int]
        for column in table.primary_key.columns:
            why = _unfit_for_keys(column.type, dialect)
            if why is not None:
                raise DefinitionError(f"table {table.fullname}, key column {column.name}: {why}")
        self._forms = {
            str(c.name): form
            for c in table.columns
            if (form := _form(c.type, self._types[str(c.name)])) is not None
        }
        for column in table.primary_key.columns:
            if _is_of_users(column.type):
                self._forms[str(column.name)] = partial(_there_and_back, column.type, dialect)
        if dialect.name == "sqlite":
            for name, form in self._forms.items():
                if isinstance(self._columns[name].type, Numeric | Float):
                    self._forms[name] = partial(_as_double, form)
        self._has_zone = {
            str(c.name): c.type.timezone
            for c in table.columns
            if isinstance(c.type, DateTime | Time)
        }
        self.generated = tuple(
            str(c.name)
            for c in table.columns
            if c is table.autoincrement_column or c.identity or isinstance(c.default, Numbers)
        )
        self.overrides_identity = any(c.identity and c.identity.always for c in table.columns)
        self._has_moment_key = any(self._has_zone.get(name) for name in self.key_columns)
        self._computed = {str(c.name) for c in table.columns if c.computed is not None}
        self.written = tuple(name for name in self._columns if name not in self._computed)
        self._given = frozenset(self.written)
        self.values_of = _picker(self.written)
        self.inexact = tuple(name for name in self.written if _is_inexact(self._columns[name].type))
        self.defaults: dict[str, Default] = {
            str(c.name): default_of_column(
                c, c.default if c.default is not None else c.server_default, dialect
            )
            for c in table.columns
            if c.name not in self.generated
            and c.computed is None
            and (c.default is not None or c.server_default is not None)
        }
        self.onupdates: dict[str, Default] = {
            str(c.name): default_of_column(c, c.onupdate, dialect)
            for c in table.columns
            if c.onupdate is not None
        }
        self._required = [name for name in self.written if not self._columns[name].nullable]
        self.shared_select = self._select_by_key().with_for_update(read=True)
        # Keys never change, so references to a locked row may be checked meanwhile.
        self.exclusive_select = self._select_by_key().with_for_update(key_share=True)
        self.free_select = self._select_by_key().with_for_update(key_share=True, skip_locked=True)
        self.plain_select = self._select_by_key()

    def __repr__(self) -> str:
        return f"<TableSpec {self.name}>"

    def key(self, key: Any) -> Key:
        """Normalise a user's key: a value for a simple key, a tuple for a composite one.

        Raises
        ------
        InvalidRow
            If the number or a type of the values does not fit the primary key.
        """
        if type(key) is int and self._has_int_key:
            return (key,)  # the common case
        values = key if isinstance(key, tuple) else (key,)
        if len(values) != len(self.key_columns):
            raise InvalidRow(
                f"table {self.name}: the key is ({', '.join(self.key_columns)}), so give "
                f"{len(self.key_columns)} value(s), not {len(values)}: {key!r}"
            )
        checked = []
        for name, value in zip(self.key_columns, values, strict=True):
            if value is None:
                raise InvalidRow(f"table {self.name}: key column {name} cannot be NULL")
            checked.append(self._checked_value(name, value))
        return tuple(checked)

    def key_of(self, row: Row) -> Key:
        """Return the key of a complete row."""
        if self._has_moment_key:  # a caller's connection may have a time zone of its own
            return self.key(tuple([row[name] for name in self.key_columns]))
        return tuple([row[name] for name in self.key_columns])

    def row(self, values: Sequence[Any]) -> Row:
        """Build a read-only row from the values of all columns, in order."""
        return MappingProxyType(NamedValues(zip(self._columns, values, strict=True)))

    def shown(self, row: Row) -> Row:
        """Return `row` for a user, whose in-place changes to its values do not affect the row."""
        if not self.has_mutable:
            return row
        return MappingProxyType(
            NamedValues(
                (name, value if type(value) in IMMUTABLE else copied(value))
                for name, value in row.items()
            )
        )

    def missing_defaults(self, values: Mapping[str, Any]) -> list[str]:
        """Return the columns that `values` leaves to their defaults.

        Raises
        ------
        InvalidRow
            On an unknown column.
        """
        if not values.keys() <= self._given:
            self._checked(values)
        return [name for name in self.defaults if name not in values]

    def unnumbered(self, values: Mapping[str, Any]) -> list[str]:
        """Return the columns for which the database generates numbers that `values` lack."""
        return [
            name
            for name in self.generated
            if values.get(name) is None and (name not in values or name in self.key_columns)
        ]

    def complete(self, values: Mapping[str, Any]) -> Row:
        """Check the values of an insert and build a whole row from them.

        Defaults and generated keys must be filled in already.

        Raises
        ------
        InvalidRow
            On an unknown column, a wrong type or a missing value of a NOT NULL column.
        """
        checked = self._checked(values)
        row = MappingProxyType(NamedValues((name, checked.get(name)) for name in self._columns))
        for name in self._required:
            if row[name] is None:
                raise InvalidRow(f"table {self.name}: column {name} is NOT NULL; give it a value")
        return row

    def certain(self, row: Row) -> Row:
        """Return the values of a row that the database stores as they are.

        It may cut off text that is longer than its column.
        """
        cut = [
            name
            for name, length in self._lengths.items()
            if isinstance(row.get(name), str) and len(row[name]) > length
        ]
        return {name: row[name] for name in row if name not in cut} if cut else row

    def changed(self, row: Row, values: Mapping[str, Any]) -> Row:
        """Return `row` with `values`, checked and applied.

        Raises
        ------
        InvalidRow
            On an unknown column, a wrong type, NULL in a NOT NULL column or a change of the key.
        """
        for name in self.key_columns:
            if name in values and self._checked({name: values[name]})[name] != row[name]:
                raise InvalidRow(
                    f"table {self.name}: an update cannot change key column {name}; "
                    f"delete the row and insert another"
                )
        checked = self._checked(values)
        for name in self._required:
            if name in checked and checked[name] is None:
                raise InvalidRow(f"table {self.name}: column {name} is NOT NULL; give it a value")
        return MappingProxyType(NamedValues({**row, **checked, **dict.fromkeys(self._computed)}))

    def _checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        if self._renamed is not None:
            raise DefinitionError(
                f"table {self.name}: column {self._renamed.name} has the key "
                f"{self._renamed.key!r}; rows and rules name columns as the database does, so "
                f"leave key= out"
            )
        checked: dict[str, Any] = {}
        for name, value in values.items():
            if name not in self._columns:
                raise UnknownColumn(
                    f"table {self.name} has no column {name!r}; it has "
                    f"{', '.join(self._columns)}{nearest(name, self._columns)}"
                )
            if name in self._computed:
                raise InvalidRow(
                    f"table {self.name}: the database computes column {name}; leave it out"
                )
            is_plain = value is None or (type(value) is int and self._types[name] is int)
            kept = value if is_plain else self._checked_value(name, value)
            if type(kept) is str and len(kept) > self._lengths.get(name, math.inf):
                kept = _cut(self._lengths[name], kept)
            checked[name] = kept
        return checked

    def _checked_value(self, name: str, value: Any) -> Any:
        """Return `value`, as the type that the database would return, if the column accepts it."""
        wanted = self._types[name]
        if wanted is not None:
            if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
                raise InvalidRow(
                    f"table {self.name}: column {name} takes {self._columns[name].type!r}, "
                    f"not {type(value).__name__} {_shown(value)}"
                )
            if isinstance(value, str) and not is_storable(value):
                raise InvalidRow(
                    f"table {self.name}: column {name} cannot keep {value!r}: NUL and halves of "
                    f"surrogate pairs are not text to a database"
                )
            if name in self._has_zone:
                self._check_zone(name, value)
            if wanted is datetime.date and isinstance(value, datetime.datetime):
                raise InvalidRow(
                    f"table {self.name}: column {name} is a date; give {value!r}.date()"
                )
        form = self._forms.get(name)
        if form is None:
            return value
        try:
            kept = form(value)
            if name in self.key_columns:
                hash(kept)  # rows are found by it
                if kept != kept:
                    raise ValueError("a key cannot be NaN")
        except Exception as error:
            raise InvalidRow(
                f"table {self.name}: column {name} takes {self._columns[name].type!r}, not "
                f"{_shown(value)} ({type(error).__name__}: {error})"
            ) from error
        return kept

    def _check_zone(self, name: str, value: datetime.datetime | datetime.time) -> None:
        """Check that a time has a time zone where the column has one, and is a time in UTC too."""
        has_zone, is_instant = self._has_zone[name], isinstance(value, datetime.datetime)
        if has_zone and is_instant and value.tzinfo is None:
            raise InvalidRow(
                f"table {self.name}: column {name} is an instant; give {value!r} a time zone"
            )
        if value.tzinfo is not None and not has_zone:
            raise InvalidRow(
                f"table {self.name}: column {name} has no time zone; give {value!r} without one"
            )
        if has_zone and isinstance(value, datetime.datetime) and value.year in _OUTERMOST_YEARS:
            try:
                value.astimezone(datetime.UTC)
            except OverflowError as error:
                raise InvalidRow(
                    f"table {self.name}: column {name} cannot keep {value!r}, which lies outside "
                    f"the years 1 to 9999 of UTC"
                ) from error

    def in_order(self, keys: Iterable[Key]) -> list[Key]:
        """Return `keys` sorted, the same way in every process. O(n log n)."""
        try:
            return sorted(keys)
        except TypeError:  # unordered values, such as members of an enum
            return sorted(keys, key=lambda key: [f"{value!r:>24}" for value in key])

    def _select_by_key(self) -> Select[Any]:
        keys: BindParameter[Any] = bindparam("keys", expanding=True)
        columns = [self.table.c[name] for name in self.key_columns]
        chosen = columns[0] if len(columns) == 1 else tuple_(*columns)
        return select(*self.table.columns).where(chosen.in_(keys)).order_by(*columns)


def differ(a: Any, b: Any) -> bool:
    """Return whether a database tells two values apart; True and 1, equal in Python, it does."""
    try:
        return bool(a != b) or repr(a) != repr(b)
    except Exception:  # of a class of the user's, which may not compare
        return True


def _is_inexact(kind: Any) -> bool:
    """Return whether a value of a column may come back from Python as another one.

    Months become days, and decimals doubles, also those in JSON.
    """
    if isinstance(kind, ARRAY):
        return _is_inexact(kind.item_type)
    if isinstance(kind, Float):
        return bool(kind.asdecimal)
    if isinstance(kind, Numeric):
        return not kind.asdecimal
    is_of_sqlalchemy = type(kind).__module__.startswith("sqlalchemy.")
    return not is_of_sqlalchemy or isinstance(kind, Interval | INTERVAL | JSON)


def _unfit_for_keys(kind: Any, dialect: Dialect) -> str | None:
    """Return why rows cannot be found by values of a type, and what to do; None if they can."""
    if _is_of_users(kind):
        stored = kind.load_dialect_impl(dialect)
        # Texts of one length, such as UUIDs, come back from a CHAR as they are.
        return None if isinstance(stored, CHAR) else _unfit_for_keys(stored, dialect)
    if isinstance(kind, CHAR):
        return "a CHAR comes back padded and does not equal itself; use String or Text"
    if isinstance(kind, JSON | ARRAY):
        return f"a value of {kind!r} cannot be a key, as it may be a list; use String"
    if isinstance(kind, CITEXT | INET | CIDR | MACADDR | MACADDR8):
        return f"values of {kind!r} that differ here may be equal to the server; use String"
    precision = getattr(kind, "precision", None)
    if isinstance(kind, DateTime | Time) and precision is not None and precision < _MICROSECONDS:
        return f"a value of {kind!r} is rounded, and does not equal what was given; use DateTime"
    if isinstance(kind, Time) and kind.timezone:
        return "times of day in several zones may be equal to the server; use DateTime"
    is_rounded = (
        kind.asdecimal
        if isinstance(kind, Float)
        else isinstance(kind, Numeric) and not kind.asdecimal and kind.scale is not None
    )
    if is_rounded or _is_single(kind):
        return f"a value of {kind!r} is rounded, and does not equal what was given; use Double"
    return None


def _is_of_users(kind: Any) -> bool:
    """Return whether a type is a TypeDecorator of the user's."""
    return isinstance(kind, TypeDecorator) and not type(kind).__module__.startswith("sqlalchemy.")


def _there_and_back(kind: Any, dialect: Dialect, value: Any) -> Any:
    """Return a key as a column of a TypeDecorator returns it, which has one form of each key.

    Raises
    ------
    ValueError
        If that is no form in which it could be found again.
    """
    kept = _returned(kind, dialect, value)
    if _returned(kind, dialect, kept) != kept:
        raise ValueError(f"a key that comes back as {_shown(kept)} and then as something else")
    return kept


def _returned(kind: Any, dialect: Dialect, value: Any) -> Any:
    if not _is_of_users(kind):
        form = _form(kind, _python_types_of(kind))
        return value if form is None else form(value)
    stored = processed(kind, "process_bind_param", value, dialect)
    stored = _returned(kind.load_dialect_impl(dialect), dialect, stored)
    return processed(kind, "process_result_value", stored, dialect)


def _is_single(kind: Any) -> bool:
    """Return whether a column is a float4 at the server."""
    if not isinstance(kind, Float) or isinstance(kind, Double):
        return False
    is_short = kind.precision is not None and kind.precision <= _SINGLE_BITS
    return isinstance(kind, REAL) or is_short


def _form(kind: Any, python_types: object) -> Callable[[Any], Any] | None:
    """Return a function from a value to the one that the database returns for it.

    So values compare here as there, and no other code changes them in place. None where it is the
    value itself. The function raises an exception for a value that the type cannot keep.
    """
    if python_types is None:
        is_json = isinstance(kind, JSON) and type(kind).__module__.startswith("sqlalchemy.")
        return _json if is_json else _own
    if isinstance(kind, Enum):
        if kind.enum_class is None:
            return {text: text for text in kind.enums}.__getitem__
        members = kind.enum_class
        known = dict(members.__members__)
        if len(kind.enums) == len(members):
            known = dict(zip(kind.enums, members, strict=True)) | known
        return lambda value: value if isinstance(value, members) else known[value]
    if isinstance(kind, Uuid):
        if kind.as_uuid:
            return lambda value: value if isinstance(value, uuid.UUID) else uuid.UUID(value)
        return lambda value: str(uuid.UUID(str(value)))
    if isinstance(kind, LargeBinary):
        return bytes
    if isinstance(kind, DateTime) and kind.timezone:
        return instant  # equal times of two zones differ in Python where clocks are set back
    if isinstance(kind, Numeric | Float):
        if not kind.asdecimal:
            return _float
        if isinstance(kind, Float):
            return _decimal
        return decimal_form(kind)
    if isinstance(kind, ARRAY):
        is_number = isinstance(kind.item_type, Numeric | Float)  # the server rounds these
        item_types = _python_types_of(kind.item_type)
        of_item = None if is_number else _form(kind.item_type, item_types)
        into = tuple if kind.as_tuple else list
        return lambda value: _nested(value, into, of_item or copied, kind.dimensions)
    return None


def decimal_form(kind: Any) -> Callable[[float | Decimal], Decimal]:
    """Return a function from a number to the decimal that a NUMERIC column stores for it."""
    scale = kind.scale
    if scale is None and kind.precision is not None:
        scale = 0  # NUMERIC(10) is NUMERIC(10, 0)
    return partial(_numeric, step=None if scale is None else Decimal(1).scaleb(-scale))


def instant(time: datetime.datetime) -> datetime.datetime:
    """Return a time in the form in which equal times are equal: in UTC if it has a zone."""
    return time.replace(fold=0) if time.tzinfo is None else time.astimezone(datetime.UTC)


def _own(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else copied(value)


def _nested(
    value: Any,
    into: type[list[Any] | tuple[Any, ...]],
    of_item: Callable[[Any], Any],
    depth: int | None,
) -> Any:
    """Return an array's value; without a declared number of dimensions, all lists are arrays."""
    if value is None:
        return None
    if depth == 0 or not isinstance(value, list | tuple):
        return of_item(value)
    deeper = None if depth is None else depth - 1
    return into(_nested(each, into, of_item, deeper) for each in value)


_JSON_ATOMS = frozenset({bool, float, int, str, type(None)})


def _json(value: Any) -> Any:
    """Return JSON as it comes back: tuples are lists, and names are text."""
    kind = type(value)
    if kind in _JSON_ATOMS or value is JSON.NULL:
        return value
    if kind is list or kind is tuple:
        return [item if type(item) in _JSON_ATOMS else _json(item) for item in value]
    if kind is dict and all(type(name) is str for name in value):
        return {
            name: item if type(item) in _JSON_ATOMS else _json(item) for name, item in value.items()
        }
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):  # a caller's connection may have a serializer of its own
        return copied(value)


def _float(value: float | Decimal) -> float:
    found = float(value)
    if math.isinf(found) and found != value:
        raise OverflowError("beyond a double")
    return found


def _numeric(value: float | Decimal, step: Decimal | None) -> Decimal:
    """Return a number as a decimal column stores it; Postgres takes 15 digits of a double."""
    found = _decimal(Decimal(format(value, ".15g")) if isinstance(value, float) else value)
    return found if step is None else _rounded(found, step)


def _decimal(value: float | Decimal) -> Decimal:
    found = Decimal(str(float(value))) if isinstance(value, float) else Decimal(value)
    if found.is_snan():
        raise ValueError("a signaling NaN is no number to a database")
    return found


def _as_double(form: Callable[[Any], Any], value: Any) -> Any:
    """Return `form` of a number, if a database that keeps doubles, and no NaN, can keep it."""
    kept = form(value)
    found = float(kept)
    if not math.isfinite(found) and found != kept:
        raise ValueError("memory:// keeps doubles, and no NaN")
    return kept


def _picker(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda row: tuple([row[name] for name in names])


def _rounded(value: Decimal, step: Decimal) -> Decimal:
    """Return `value` as a column of this scale stores it."""
    try:
        return value.quantize(step, ROUND_HALF_UP, _LONGEST)
    except InvalidOperation:
        return value  # NaN, an infinity, or too long: left to the database


def _cut(length: int, text: str) -> str:
    """Return a text without the blanks at its end that exceed the length, as VARCHAR stores it."""
    return text if text[length:].strip(" ") else text[:length]


def is_storable(text: str) -> bool:
    """Return whether a database accepts `text`: no NUL, no unpaired surrogate."""
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unique_keys(table: Table) -> Iterator[tuple[str, ...]]:
    """Yield the columns of each constraint by which rows differ: in all rows, not in some."""
    for constraint in table.constraints:
        if isinstance(constraint, UniqueConstraint):
            yield tuple(str(c.name) for c in constraint.columns)
    for index in table.indexes:
        is_partial = any(
            value is not None
            for name, value in index.dialect_kwargs.items()
            if name.endswith("_where")
        )
        has_columns = all(isinstance(each, Column) for each in index.expressions)
        if index.unique and has_columns and not is_partial:
            yield tuple(str(c.name) for c in index.columns)


def _plain_table(table: Any) -> Table:
    if isinstance(table, Table):
        return table
    try:
        mapped = inspect(table).local_table
    except (NoInspectionAvailable, AttributeError):
        mapped = None
    if not isinstance(mapped, Table):
        raise DefinitionError(
            f"{table!r} is neither a SQLAlchemy Table nor a class mapped to one table"
        )
    return mapped


def _python_types_of(kind: Any) -> type[Any] | tuple[type[Any], ...] | None:
    """Return the Python types a column accepts, or None where only the database can tell."""
    if isinstance(kind, Enum):
        return str if kind.enum_class is None else (kind.enum_class, str)
    if type(kind).__module__.startswith("sqlalchemy."):
        for sql_type, python_types in _CHECKED:
            if isinstance(kind, sql_type):
                return python_types
    return None


_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80
_shown = _short.repr


# -- view of a table as keys and values: the rows of programs' shared tables -----------------------


_EXACT = (Boolean, Date, DateTime, Enum, Integer, JSON, LargeBinary, String, Uuid)


class KeyedValues:
    """Converter between rows and pairs of key and value.

    The key is the value of the primary key, a tuple if it has several columns; the value is that
    of the other column, a dict if there are several. Converting a pair to a row and back yields
    the original pair.

    Attributes
    ----------
    spec : TableSpec
    columns : tuple of str
        Columns of the value.

    Raises
    ------
    DefinitionError
        If the table has only key columns, or a column that may return another value than it was
        given.
    """

    def __init__(self, spec: TableSpec):
        self.spec = spec
        self.columns = tuple(
            str(c.name) for c in spec.table.columns if c.name not in spec.key_columns
        )
        if not self.columns:
            raise DefinitionError(
                f"table {spec.name} has nothing but its key: a program's table has a column for "
                "the value, or several"
            )
        for column in spec.table.columns:
            if not _is_exact(column):
                raise DefinitionError(
                    f"table {spec.name}: column {column.name} of type {column.type!r} may return "
                    "another value than it was given, so a program cannot continue from it after a "
                    "restart; take Integer, Float, Numeric, String, Boolean, Date, DateTime, Uuid, "
                    "Enum, LargeBinary or JSON"
                )
        self._json = {str(c.name) for c in spec.table.columns if isinstance(c.type, JSON)}

    @property
    def holds_floats(self) -> bool:
        """True if a value is one float."""
        return len(self.columns) == 1 and isinstance(
            self.spec.table.columns[self.columns[0]].type, Float
        )

    @property
    def has_number_key(self) -> bool:
        """True if a key is one integer."""
        names = self.spec.key_columns
        return len(names) == 1 and isinstance(self.spec.table.columns[names[0]].type, Integer)

    def pair(self, row: Row) -> tuple[Any, Any]:
        """Return the key and the value of a row."""
        key = self.spec.key_of(row)
        values = {name: row[name] for name in self.columns}
        return (
            key[0] if len(key) == 1 else key,
            values if len(values) > 1 else values[self.columns[0]],
        )

    def row(self, key: Any, value: Any) -> Row:
        """Return the row of a key and a value.

        Raises
        ------
        InvalidRow
            If the table does not accept them, or would return something else.
        """
        spec = self.spec
        given = dict(zip(spec.key_columns, spec.key(key), strict=True))
        if given != dict(zip(spec.key_columns, key if type(key) is tuple else (key,), strict=True)):
            raise InvalidRow(f"table {spec.name}: the key {key!r} comes back as {spec.key(key)!r}")
        given |= self._values(key, value)
        row = spec.complete(given)
        for name in self.columns:
            self._check_same(name, given[name], row[name])
        return row

    def _values(self, key: Any, value: Any) -> dict[str, Any]:
        if len(self.columns) == 1:
            return {self.columns[0]: value}
        if not isinstance(value, dict) or value.keys() != set(self.columns):
            raise InvalidRow(
                f"table {self.spec.name}: the value of {key!r} is a dict of "
                f"{', '.join(self.columns)}, not {value!r}"
            )
        return value

    def _check_same(self, name: str, given: Any, kept: Any) -> None:
        spec = self.spec
        if name in self._json:
            try:
                kept = json.loads(json.dumps(given))
            except (TypeError, ValueError) as error:
                raise InvalidRow(
                    f"table {spec.name}: column {name} cannot keep {given!r}: {error}"
                ) from error
        if given != kept and given == given:  # NaN is unequal to itself, but is kept
            raise InvalidRow(
                f"table {spec.name}: column {name} would return {kept!r} for {given!r}; write what "
                "it can keep"
            )


def _is_exact(column: Column[Any]) -> bool:
    """Return whether the values that a column returns can be predicted from those it is given."""
    kind = column.type
    if column.computed is not None or not type(kind).__module__.startswith("sqlalchemy."):
        return False
    if isinstance(kind, Float):
        return not kind.asdecimal and not _is_single(kind)
    if isinstance(kind, Numeric):
        return kind.asdecimal
    return isinstance(kind, _EXACT) and not isinstance(kind, CHAR)
