"""Rules, and the catalog of rules by the events that can trigger them."""

from activedb.rules._catalog import Catalog
from activedb.rules._data import FunctionNames, rules_from_data, rules_from_file
from activedb.rules._declared import Declared, FindReads, Part, check_columns
from activedb.rules._fingerprint import event_fingerprint, fingerprint
from activedb.rules._registered import (
    CHANGEABLE,
    KEPT,
    RegisteredRule,
    as_kept,
    next_version,
    quarantined,
    redefined,
    registered,
)
from activedb.rules._rule import (
    Action,
    Condition,
    OccurrenceSet,
    OnAbort,
    OnFull,
    OnMany,
    OnUncertain,
    Rule,
    RuleOptions,
)
from activedb.rules._subscription import PARTIALS_MAX, Sharing, Subscription, Taken

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
    "check_columns",
    "event_fingerprint",
    "fingerprint",
    "next_version",
    "quarantined",
    "redefined",
    "registered",
    "rules_from_data",
    "rules_from_file",
]
