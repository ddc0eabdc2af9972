"""Rules and the catalog that tells which of them an event can trigger."""

from activedb.rules._catalog import Catalog
from activedb.rules._data import rules_from_data, rules_from_file
from activedb.rules._declared import Part
from activedb.rules._fingerprint import fingerprint
from activedb.rules._function_names import FunctionNames
from activedb.rules._occurrence_set import OccurrenceSet
from activedb.rules._registered import RegisteredRule, Subscription
from activedb.rules._rule import Action, Condition, OnAbort, Rule
from activedb.rules._versions import (
    CHANGEABLE,
    KEPT,
    as_kept,
    next_version,
    quarantined,
    redefined,
    registered,
)
from activedb.rules._without_event import FindReads

__all__ = [
    "CHANGEABLE",
    "KEPT",
    "Action",
    "Catalog",
    "Condition",
    "FindReads",
    "FunctionNames",
    "OccurrenceSet",
    "OnAbort",
    "Part",
    "RegisteredRule",
    "Rule",
    "Subscription",
    "as_kept",
    "fingerprint",
    "next_version",
    "quarantined",
    "redefined",
    "registered",
    "rules_from_data",
    "rules_from_file",
]
