"""Static analysis of rule sets: triggering, termination and confluence. See README.md."""

from activedb.analysis._analysis import Analysis, Cycle, Verdict, analyze, rule_as_dict
from activedb.analysis._confluence import Conflict, Pair
from activedb.analysis._drawing import draw_svg, draw_text, explained, rule_text
from activedb.analysis._effects import Change, Effects, Outside, Read, Signal, Unresolved
from activedb.analysis._explanation import Explanation, OpenDecisions, Step, explain, profile_named
from activedb.analysis._profile import TIME, Listening, Profile, Role, reads_of
from activedb.analysis._triggering import Cause, Edge

__all__ = [
    "TIME",
    "Analysis",
    "Cause",
    "Change",
    "Conflict",
    "Cycle",
    "Edge",
    "Effects",
    "Explanation",
    "Listening",
    "OpenDecisions",
    "Outside",
    "Pair",
    "Profile",
    "Read",
    "Role",
    "Signal",
    "Step",
    "Unresolved",
    "Verdict",
    "analyze",
    "draw_svg",
    "draw_text",
    "explain",
    "explained",
    "profile_named",
    "reads_of",
    "rule_as_dict",
    "rule_text",
]
