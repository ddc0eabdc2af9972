"""Events in columns: arrays, together with the events' arrival positions."""

from activedb.columns.events._arrow import arrow, codes_of, texts_of, values_of
from activedb.columns.events._bytes import (
    arrays_of_bytes,
    arrays_to_bytes,
    events_of_bytes,
    events_to_bytes,
    note_of_bytes,
    note_to_bytes,
    noted_places,
    pieces_of,
    places_of_bytes,
    places_to_bytes,
)
from activedb.columns.events._columns import NO_VALUE, EventColumns, column_of
from activedb.columns.events._events import (
    ABSENT,
    THERE,
    Column,
    ColumnEvents,
    Ints,
    Mask,
    Values,
    objects,
)

__all__ = [
    "ABSENT",
    "NO_VALUE",
    "THERE",
    "Column",
    "ColumnEvents",
    "EventColumns",
    "Ints",
    "Mask",
    "Values",
    "arrays_of_bytes",
    "arrays_to_bytes",
    "arrow",
    "codes_of",
    "column_of",
    "events_of_bytes",
    "events_to_bytes",
    "note_of_bytes",
    "note_to_bytes",
    "noted_places",
    "objects",
    "pieces_of",
    "places_of_bytes",
    "places_to_bytes",
    "texts_of",
    "values_of",
]
