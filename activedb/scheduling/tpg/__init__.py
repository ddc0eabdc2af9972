"""Stream transactions by task precedence graphs (Mao et al.). See README.md."""

from activedb.scheduling.tpg._calibration import calibrate
from activedb.scheduling.tpg._model import Decision, Properties, Thresholds
from activedb.scheduling.tpg._parts import PartReport, PhaseTimes
from activedb.scheduling.tpg._scheduler import TPG, by_tables
from activedb.scheduling.tpg._vertex import OperationState, Vertex

__all__ = [
    "TPG",
    "Decision",
    "OperationState",
    "PartReport",
    "PhaseTimes",
    "Properties",
    "Thresholds",
    "Vertex",
    "by_tables",
    "calibrate",
]
