"""Who computes what, and in which order: schedules as plain data.

No tensors, no processes. A schedule is made by name, lowered to lists with sends and receives,
proven, simulated and drawn; an engine only has to execute the lists.
"""

from .action import Action, Kind
from .forward_only import forward_only
from .lowering import Event, Program, lower
from .placement import Placement, loop, vee
from .registry import SCHEDULES, make_schedule
from .rendezvous import rendezvous
from .schedule import Schedule
from .simulate import simulate
from .text import dump, load
from .timeline import Span, Timeline, render
from .validate import Report, validate

__all__ = [
    "SCHEDULES",
    "Action",
    "Event",
    "Kind",
    "Placement",
    "Program",
    "Report",
    "Schedule",
    "Span",
    "Timeline",
    "dump",
    "forward_only",
    "load",
    "loop",
    "lower",
    "make_schedule",
    "render",
    "rendezvous",
    "simulate",
    "validate",
    "vee",
]
