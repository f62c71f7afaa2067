"""The one exception tree. Every message names the culprit and a remedy.

Mpi4dlError
├── GeometryError         boxes, layouts or windows that cannot exist
├── LayoutMismatch        tensors, layouts and ranks that do not fit together
├── PlanError             stages, ranks and batches that do not fit together
├── ScheduleError         orders of work that cannot be made, or that would wait for ever
├── UnsupportedOperator   an operator that has no rule for tiles
├── UsageError            words of a command line that cannot be, or not together
├── DataError             files that are missing, or are not what they should be
│   └── DamagedFile       a file that is there, and cannot be read
├── CheckpointError       checkpoints that cannot be written, read, or given to this trainer
├── NonFiniteError        a loss or a gradient that is no number
└── LaunchError           the process group or its surroundings are not usable
    └── RankLost          another rank has ended in the middle of the work
"""


class Mpi4dlError(Exception):
    """Base of everything that mpi4dl raises on purpose."""


class GeometryError(Mpi4dlError, ValueError):
    """A box, layout or window that cannot exist: sizes or cuts that do not fit."""


class LayoutMismatch(Mpi4dlError, ValueError):
    """A tensor, a layout and a group of ranks that do not fit together."""


class PlanError(Mpi4dlError, ValueError):
    """A plan that cannot be carried out: stages, ranks, batches and layers that do not fit."""


class ScheduleError(Mpi4dlError, ValueError):
    """A schedule that cannot be made, leaves work undone, or would wait for ever."""


class UnsupportedOperator(Mpi4dlError, NotImplementedError):
    """An operator without a rule for tiles; never computed wrongly, never gathered silently."""


class UsageError(Mpi4dlError, ValueError):
    """What was typed cannot be carried out."""


class DataError(Mpi4dlError, ValueError):
    """Files of a data set that are missing, or are not what they should be."""


class DamagedFile(DataError):
    """A file that is cut off, or has something else in it than its format wants."""


class CheckpointError(Mpi4dlError, RuntimeError):
    """A checkpoint that cannot be written or read, or that belongs to another training."""


class NonFiniteError(Mpi4dlError, ArithmeticError):
    """The loss or its gradient is infinite or no number. Nothing was changed by that step."""


class LaunchError(Mpi4dlError, RuntimeError):
    """The process group cannot be formed from what the launcher provided."""


class RankLost(LaunchError):
    """Another rank has ended, and what this one waits for will never come."""
