"""How a test goes, on stderr.

At a terminal a table that changes in place; elsewhere a line for each phase and now and then one
of figures.
"""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .run import Watcher
from .samples import Samples

_LINE_EVERY = 5
_SHOWN = {
    "t_s": "s",
    "offered": "offered",
    "accepted": "accepted",
    "completed": "completed a second",
    "failed": "failed",
    "in_flight": "under way",
    "create_p50_ms": "create p50 ms",
    "create_p99_ms": "create p99 ms",
    "queued": "queued",
    "slots_used": "slots used",
    "gatekeeper_calls_per_s": "gatekeeper calls a second",
}


class Progress(Watcher):
    """Shows a test.

    Args:
        console: of stderr.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase = "starting"
        self._samples: Samples | None = None
        self._seconds = 0
        self._live = (
            Live(console=console, auto_refresh=False, transient=True)
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def phase(self, name: str) -> None:
        """What begins."""
        self._phase = name
        if self._live is None:
            self._line(name)
        else:
            self._live.update(self._table(), refresh=True)

    def sample(self, samples: Samples) -> None:
        """A second is over."""
        self._samples = samples
        self._seconds += 1
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif self._seconds % _LINE_EVERY == 0:
            row = samples.last
            told = [f"{name} {_text(row.get(key))}" for key, name in _SHOWN.items()]
            self._line("  ".join(told))

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _table(self) -> Table:
        row = {} if self._samples is None else self._samples.last
        table = Table(box=None, title=Text(self._phase), title_justify="left", show_header=False)
        table.add_column(style="bold")
        table.add_column(justify="right")
        for key, name in _SHOWN.items():
            table.add_row(name, _text(row.get(key)))
        return table


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}"
