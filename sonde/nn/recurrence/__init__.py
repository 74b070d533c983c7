"""Linear recurrences: a rule defines what each step does, the engine supplies every execution form."""

from .choose import Choice, choose
from .run import FORMS, Rule, State, Watch, compute, divide, normalize, record_recurrences, run, with_ones
from .scan import scan
from .steps import Steps

__all__ = [
    "FORMS",
    "Choice",
    "Rule",
    "State",
    "Steps",
    "Watch",
    "choose",
    "compute",
    "divide",
    "normalize",
    "run",
    "scan",
    "record_recurrences",
    "with_ones",
]
