"""Rules and the catalog that tells which of them an event can trigger."""

from activedb.rules._catalog import Catalog, Subscription
from activedb.rules._rule import Action, Condition, OnAbort, Rule

__all__ = ["Action", "Catalog", "Condition", "OnAbort", "Rule", "Subscription"]
