"""What has not begun or ended is counted and misses objectives; others' instances don't matter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.loadtest.serving import EVERY_S, access, serving, small
from toque.api.cli_exits import FAILED
from toque.gatekeeper.refusals import RateLimited
from toque.loadtest.execute import verdict
from toque.loadtest.result import Result
from toque.loadtest.run import run_on
from toque.loadtest.targets_http import SCRIPT, Target, embedded_target, http_target
from toque.runtime import limits
from toque.runtime.errors import InvalidArgument, OutcomeUnknown, ToqueError

ENDLESS = 300.0
SOON = {"hold_s": ENDLESS, "drain_s": 0.3}


async def on_server(url: str, scenario: str, **more: Any) -> Result:
    return await run_on(http_target(access(url)), small(scenario, **more), every_s=EVERY_S)


def test_what_never_began_misses_objectives() -> None:
    slo = ["p99_start_ms=1e9", "p99_end_ms=1e9", "error_rate=0", "p99_create_batch_ms=1e9"]
    options = small("queue", count=5, limit=1, slo=slo, **SOON)
    result = asyncio.run(run_on(embedded_target(), options, every_s=EVERY_S))
    counts = result.counts
    assert (counts.completed, counts.unfinished, counts.unstarted) == (0, 5, 4)
    assert [each.met for each in result.slos] == [False, False, False, True]
    assert result.slos[2].measured == 1
    assert verdict(result) == FAILED
    assert result.stopped_early == "not all instances had ended after 0.3 s"
    assert result.latencies["start"].count == result.latencies["end"].count == 5
    assert result.latencies["end"].min is not None
    assert result.latencies["end"].min >= 300  # as old as that at least
    assert result.wall_s >= 0.3
    assert result.terminated == 5


def test_a_rate_at_which_nothing_ends_does_not_hold() -> None:
    more = {"work": "hold", "limit": 1, "slo": ["error_rate=0"], **SOON}
    result = asyncio.run(run_on(embedded_target(), small("ramp", **more), every_s=EVERY_S))
    assert [step.held for step in result.ramp] == [False]
    assert result.held_rate is None
    assert not result.slos[0].met


def test_what_is_left_of_one_test_is_ended_and_spoils_no_other(tmp_path: Path) -> None:
    async def main() -> tuple[list[Result], list[dict[str, int]]]:
        async with serving(tmp_path) as url:
            found, live = [], []
            async with http_target(access(url)) as target:
                for more in (
                    {"work": "event", "keep": True, "count": 7},
                    {"work": "hold", "keep": True, "count": 7, **SOON},
                    {"work": "event", "count": 3},
                ):
                    found.append(await on_server(url, "burst", **more))
                    one = await target.client.get_workflow("LoadEvent")
                    live.append(one.instances)
            found.append(await on_server(url, "burst", work="hold", hold_s=0.01, count=5))
            found.append(await on_server(url, "waiters", count=5))
            return found, live

    results, live = asyncio.run(main())
    assert [each.terminated for each in results] == [0, 0, 3, 0, 0]
    assert [each["terminated"] for each in live] == [0, 0, 3]
    assert [sum(each.values()) for each in live] == [7, 7, 10]
    assert [each.stopped_early is None for each in results] == [True, False, True, True, True]
    assert [each.counts.completed for each in results] == [0, 0, 0, 5, 5]


def test_more_instances_than_times_are_taken_of_are_counted_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LOADTEST_SWEEP_ROWS_MAX", 8)
    monkeypatch.setattr(limits, "PER_PAGE_MAX", 5)
    result = asyncio.run(run_on(embedded_target(), small("burst", count=23), every_s=EVERY_S))
    assert result.counts.completed == result.counts.accepted == 23
    assert result.latencies["end"].count == 8


@pytest.mark.parametrize("error", [RateLimited("slower"), OutcomeUnknown("lost")], ids=str)
def test_one_that_could_not_be_woken_is_counted_once(error: ToqueError) -> None:
    @asynccontextmanager
    async def opening() -> AsyncIterator[Target]:
        async with embedded_target() as target:
            yield target._replace(final=_Deaf(target.final, error))  # type: ignore[arg-type]

    options = small("waiters", count=6, drain_s=0.3)
    counts = asyncio.run(run_on(opening(), options, every_s=EVERY_S)).counts
    assert counts.offered == counts.accepted + counts.refused + counts.failed == 6
    assert (counts.accepted, counts.completed, counts.unfinished) == (3, 3, 3)


class _Deaf:
    """Takes every other event."""

    def __init__(self, final: Any, error: ToqueError) -> None:
        self._final = final
        self._error = error
        self._number = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._final, name)

    async def send_event(self, *words: Any) -> Any:
        self._number += 1
        if self._number % 2:
            raise self._error
        return await self._final.send_event(*words)


# --- whose workflows ---

OLDER = """
import toque

class LoadOneStep(toque.WorkflowEntrypoint):
    async def run(self, event, step):
        raise ValueError("not what the test needs")
"""


def test_older_code_of_the_test_is_replaced_and_others_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "older.py"
    file.write_text(OLDER)

    async def main() -> Result:
        async with serving(tmp_path, None) as url:
            async with http_target(access(url)) as target:
                await target.client.scripts.deploy(file, SCRIPT)
            result = await on_server(url, "burst", count=5)
            async with http_target(access(url)) as target:
                await target.client.scripts.deploy(file, "mine", take_over=True)
            with pytest.raises(InvalidArgument, match="is of script 'mine'"):
                await on_server(url, "burst", count=5)
            named = await on_server(url, "burst", workflow="LoadOneStep", count=5)
            assert named.counts.errored == 5
            return result

    assert asyncio.run(main()).counts.completed == 5
