"""The pages; each module has one function that fills its page."""

from activedb.dashboard.pages._locks import locks_page, replay_page
from activedb.dashboard.pages._overview import overview_page
from activedb.dashboard.pages._rules import rules_page
from activedb.dashboard.pages._streams import batches_page, events_page
from activedb.dashboard.pages._transactions import story_page, transactions_page

__all__ = [
    "batches_page",
    "events_page",
    "locks_page",
    "overview_page",
    "replay_page",
    "rules_page",
    "story_page",
    "transactions_page",
]
