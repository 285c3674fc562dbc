"""An entity that ends its process, again and again: others on its shard are served all the same."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "tests.recovery.poisoned")
LIVES = 4
SERVED_MIN = 10


def retries(data: Path) -> int:
    """How often the poisonous alarm has failed, by its row."""
    with closing(sqlite3.connect(data / "shards" / "d0.sqlite")) as store:
        ((found,),) = store.execute("SELECT retries FROM alarms WHERE kind = 'Poison'")
    return int(found)


@pytest.mark.parametrize("trigger", ["alarm", "message"])
def test_others_are_served_beside_an_entity_that_ends_its_process(
    tmp_path: Path, trigger: str
) -> None:
    first = 0
    for life in range(LIVES):
        done = subprocess.run(
            [*COMMAND, str(tmp_path / "data"), str(first), trigger],
            capture_output=True, text=True, cwd=ROOT, timeout=120,
        )  # fmt: skip
        assert done.returncode == 3, f"nothing ended it: {done.stderr[-2000:]}"
        numbers = [int(line) for line in done.stdout.split()]
        if life:
            assert len(numbers) >= SERVED_MIN, f"in life {life} only {len(numbers)} were served"
            named = "Poison(one)" if trigger == "alarm" else "Poison(other)"
            assert f"the process ended while {trigger} of {named} was handled" in done.stderr
        first = numbers[-1] + 1 if numbers else first + 1
        if trigger == "alarm":  # it is a failure more each time, so it comes ever more seldom
            assert retries(tmp_path / "data") == life
