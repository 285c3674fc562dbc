"""What goes wrong in a test of a workflow, told to who wrote it.

Those that are `AssertionError` too are findings of a test; the others are mistakes in it.
"""

from __future__ import annotations

from ..engines.failures import NonRetryableError
from ..runtime.errors import AuthorError, SystemFault


class WaitsForever(AuthorError, AssertionError):
    """A test waits for what does not come; the text says what each instance waits for."""

    code = "testing.waits_forever"
    number = 10350


class OutcomeDiffers(AuthorError, AssertionError):
    """A crash at some commit changes how a workflow ends; the text says at which, and how."""

    code = "testing.outcome_differs"
    number = 10351


class ReplayFails(AuthorError, AssertionError):
    """Today's code repeats an instance's journal, and then does not go on as it must."""

    code = "testing.replay_fails"
    number = 10353


class NotInSimulation(NonRetryableError):
    """A body wants what a simulation has not: sockets, processes, files that are watched."""

    code = "testing.not_in_simulation"
    number = 10352


class SimulationFault(SystemFault):
    """toque itself did in a simulation what it must never do: a bug to report, with the seed."""

    code = "testing.simulation_fault"
    number = 10510
