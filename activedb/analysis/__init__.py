"""Static analysis of rule sets: triggering, termination and confluence. See README.md."""

from activedb.analysis._analysis import Analysis, Cycle, PropertyVerdict, analyze, rule_as_dict
from activedb.analysis._confluence import Conflict, Pair
from activedb.analysis._drawing import draw_svg, draw_text, explained, rule_text
from activedb.analysis._effects import (
    ChangeEffect,
    Effects,
    LockEffect,
    Outside,
    ReadEffect,
    SignalEffect,
    Unresolved,
)
from activedb.analysis._explanation import (
    Explanation,
    ExplanationStep,
    OpenDecisions,
    explain,
    profile_named,
)
from activedb.analysis._profile import TIME, EventRole, Listening, Profile, reads_of
from activedb.analysis._triggering import TriggeringCause, TriggeringEdge

__all__ = [
    "TIME",
    "Analysis",
    "ChangeEffect",
    "Conflict",
    "Cycle",
    "Effects",
    "EventRole",
    "Explanation",
    "ExplanationStep",
    "Listening",
    "LockEffect",
    "OpenDecisions",
    "Outside",
    "Pair",
    "Profile",
    "PropertyVerdict",
    "ReadEffect",
    "SignalEffect",
    "TriggeringCause",
    "TriggeringEdge",
    "Unresolved",
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
