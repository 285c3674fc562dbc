"""Tests of workflows without a server, in virtual time: the test kit. See docs/testing.md.

The fixture `toque_sim` comes with the pytest plugin. Each name is fetched when it is first used,
so that pytest is needed for `toque_seeds` only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .testkit.bodies import Execution, Mock, MockContext
    from .testkit.errors import (
        NotInSimulation,
        OutcomeDiffers,
        ReplayFails,
        SimulationFault,
        WaitsForever,
    )
    from .testkit.factory import SimFactory
    from .testkit.handles import SimInstance, SimStep
    from .testkit.histories import History
    from .testkit.histories_sqlite import histories
    from .testkit.plugin_pytest import toque_seeds
    from .testkit.replaying import Replay, check_replay
    from .testkit.simulation import Simulation
    from .testkit.verdict import Boundary, Survival

_HOMES = {
    "bodies": ("Execution", "Mock", "MockContext"),
    "errors": (
        "NotInSimulation",
        "OutcomeDiffers",
        "ReplayFails",
        "SimulationFault",
        "WaitsForever",
    ),
    "factory": ("SimFactory",),
    "handles": ("SimInstance", "SimStep"),
    "histories": ("History",),
    "histories_sqlite": ("histories",),
    "plugin_pytest": ("toque_seeds",),
    "replaying": ("Replay", "check_replay"),
    "simulation": ("Simulation",),
    "verdict": ("Boundary", "Survival"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Boundary",
    "Execution",
    "History",
    "Mock",
    "MockContext",
    "NotInSimulation",
    "OutcomeDiffers",
    "Replay",
    "ReplayFails",
    "SimFactory",
    "SimInstance",
    "SimStep",
    "Simulation",
    "SimulationFault",
    "Survival",
    "WaitsForever",
    "check_replay",
    "histories",
    "toque_seeds",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'toque.testing' has no attribute {name!r}")
    value = getattr(import_module(f".testkit.{home}", __package__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
