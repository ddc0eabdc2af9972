"""Rules, and the catalog of rules by the events that can trigger them."""

from activedb.rules._catalog import Catalog
from activedb.rules._data import rules_from_data, rules_from_file
from activedb.rules._declared import Declared, Part
from activedb.rules._fingerprint import event_fingerprint, fingerprint
from activedb.rules._function_names import FunctionNames
from activedb.rules._occurrence_set import OccurrenceSet
from activedb.rules._options import RuleOptions
from activedb.rules._registered import RegisteredRule
from activedb.rules._rule import Action, Condition, OnAbort, OnFull, OnMany, OnUncertain, Rule
from activedb.rules._subscription import PARTIALS_MAX, Sharing, Subscription, Taken
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
    "PARTIALS_MAX",
    "Action",
    "Catalog",
    "Condition",
    "Declared",
    "FindReads",
    "FunctionNames",
    "OccurrenceSet",
    "OnAbort",
    "OnFull",
    "OnMany",
    "OnUncertain",
    "Part",
    "RegisteredRule",
    "Rule",
    "RuleOptions",
    "Sharing",
    "Subscription",
    "Taken",
    "as_kept",
    "event_fingerprint",
    "fingerprint",
    "next_version",
    "quarantined",
    "redefined",
    "registered",
    "rules_from_data",
    "rules_from_file",
]
