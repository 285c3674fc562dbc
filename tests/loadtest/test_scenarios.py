"""Each scenario end to end, small: over HTTP against a server in this process, and embedded."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.loadtest.serving import EVERY_S, SMALL, access, serving, small
from toque.actors import keeper
from toque.api.wiring import NO_RATES, start_embedded
from toque.loadtest.fleet import ProcessFleet, SenderLost
from toque.loadtest.load import Load, Stream
from toque.loadtest.options import resolved
from toque.loadtest.result import Result
from toque.loadtest.run import Watcher, run_on, run_on_runtime
from toque.loadtest.samples import Samples
from toque.loadtest.targets_http import APP, Target, embedded_target, http_target
from toque.runtime import limits
from toque.runtime.errors import InvalidArgument, ServerUnreachable, WorkflowNotFound

ON_EMBEDDED = ("burst", "queue", "noisy-neighbour")
"""Those that do there what they do not do over HTTP: limits, metrics, batches."""


@pytest.fixture(autouse=True)
def _pages_are_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METRICS_KEPT_MS", 0)


def on_embedded(scenario: str, **more: object) -> Result:
    return asyncio.run(run_on(embedded_target(), small(scenario, **more), every_s=EVERY_S))


def over_http(folder: Path, scenario: str, **more: object) -> Result:
    async def main() -> Result:
        async with serving(folder) as url:
            target = http_target(access(url))
            return await run_on(target, small(scenario, **more), every_s=EVERY_S)

    return asyncio.run(main())


def check(result: Result) -> None:
    """What holds for every scenario that went well."""
    counts = result.counts
    assert (result.stopped_early, result.failures, result.refusals) == (None, {}, {})
    assert counts.offered == counts.accepted >= counts.completed > 0
    assert (counts.unfinished, result.terminated > 0) == (0, result.scenario == "noisy-neighbour")
    assert (counts.errored, counts.unknown, counts.retries) == (0, 0, 0)
    assert result.wall_s > 0
    assert len({len(values) for values in result.series.values()}) == 1
    assert any(result.series["commits_per_s"])
    assert any(result.series["gatekeeper_calls_per_s"])
    assert result.processes["loadtest"]["cpu_s"] > 0


@pytest.mark.parametrize(
    ("scenario", "way"),
    [*((name, "http") for name in SMALL), *((name, "embedded") for name in ON_EMBEDDED)],
)
def test_a_scenario_from_its_start_to_its_document(tmp_path: Path, scenario: str, way: str) -> None:
    result = on_embedded(scenario) if way == "embedded" else over_http(tmp_path, scenario)
    check(result)
    assert (result.target.kind, result.scenario) == (way, scenario)
    EXPECTED[scenario](result)


def _burst(result: Result) -> None:
    assert result.counts.completed == result.latencies["create"].count == 40
    assert result.latencies["start"].count == result.latencies["end"].count == 40
    assert result.latencies["create_service"].count == 40


def _steady(result: Result) -> None:
    assert result.counts.completed == 20
    assert sum(filter(None, result.series["offered"])) == 20


def _ramp(result: Result) -> None:
    assert [step.rate for step in result.ramp] == [40, 60, 80]
    assert result.held_rate == 80
    assert result.counts.completed == result.counts.accepted == 12 + 18 + 24


def _queue(result: Result) -> None:
    assert result.counts.completed == result.counts.offered == 130
    assert result.latencies["list"].count == 1
    assert max(filter(None, result.series["slots_used"])) <= 40


def _waiters(result: Result) -> None:
    assert result.counts.completed == result.counts.offered == 120
    assert result.latencies["wake"].count == result.latencies["event"].count == 120


def _noisy(result: Result) -> None:
    assert set(result.groups) == {"noisy", "quiet"}
    quiet, noisy = result.groups["quiet"], result.groups["noisy"]
    assert quiet.counts.completed == quiet.counts.offered == 12
    assert noisy.counts.accepted == 400
    assert noisy.counts.completed < 400
    assert result.fairness is not None
    assert 0 <= result.fairness["share_error"] < 1
    assert 4 in result.series["slots_limit"]


def _mixed(result: Result) -> None:
    assert {"create", "create-wait", "status", "event"} <= set(result.groups)
    assert {"create", "create_wait", "status", "event"} <= set(result.latencies)
    assert result.counts.offered == 42
    for group in result.groups.values():
        assert group.counts.completed <= group.counts.accepted == group.counts.offered
    assert result.groups["event"].counts.completed == result.groups["event"].counts.accepted


EXPECTED = {
    "burst": _burst,
    "steady": _steady,
    "ramp": _ramp,
    "queue": _queue,
    "waiters": _waiters,
    "noisy-neighbour": _noisy,
    "mixed": _mixed,
}


def test_sleepers_wake_when_they_are_due(tmp_path: Path) -> None:
    result = on_embedded("waiters", count=20, waits_for="sleep")
    assert (result.counts.completed, result.latencies["wake"].count) == (20, 20)
    assert result.counts.offered == 20


def test_waiters_are_woken_one_by_one(tmp_path: Path) -> None:
    result = over_http(tmp_path, "waiters", count=5, wake="one")
    assert result.latencies["wake"].count == result.counts.completed == 5
    assert result.counts.offered == result.counts.accepted == 5


def test_creates_that_wait_for_their_end(tmp_path: Path) -> None:
    result = over_http(tmp_path, "burst", count=20, wait=True)
    check(result)
    assert result.latencies["create_wait"].count == result.counts.completed == 20
    assert "create" not in result.latencies


def test_several_processes_send_parts_of_one_load(tmp_path: Path) -> None:
    result = over_http(tmp_path, "steady", processes=2, rate=60.0, duration_s=1.0)
    check(result)
    assert result.counts.offered == result.counts.completed == 60
    assert result.latencies["create"].count == 60


def test_a_program_tests_the_runtime_that_it_has(tmp_path: Path) -> None:
    async def main() -> Result:
        from_wiring = start_embedded(tmp_path / "data", app_path=APP, creates_per_second=NO_RATES)
        async with from_wiring as runtime:
            return await run_on_runtime(runtime, small("burst", count=5))

    result = asyncio.run(main())
    assert (result.target.kind, result.counts.completed) == ("attached", 5)


def test_the_limit_is_as_it_was_afterwards(tmp_path: Path) -> None:
    async def main() -> tuple[int, int]:
        async with serving(tmp_path) as url:
            await run_on(http_target(access(url)), small("noisy-neighbour"), every_s=EVERY_S)
            await run_on(http_target(access(url)), small("queue"), every_s=EVERY_S)
            async with http_target(access(url)) as target:
                limited = await target.client.limits.get_workflow("LoadHold")
                return (await target.client.limits.get()).running_max, limited.running_max

    assert asyncio.run(main()) == (limits.RUNNING_PER_ACCOUNT_DEFAULT, 0)


def test_a_limit_that_can_not_be_put_back_is_told_and_loses_no_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @asynccontextmanager
    async def opening() -> AsyncIterator[Target]:
        async with embedded_target() as target:

            async def limit(workflow: str | None, most: int | None) -> int | None:
                if most == 7:
                    return await target.limit(workflow, most)
                raise ServerUnreachable("gone")

            yield target._replace(limit=limit)

    result = asyncio.run(run_on(opening(), small("burst", limit=7, count=5), every_s=EVERY_S))
    assert result.counts.completed == 5
    assert "LoadOneStep could not be put back, set it to 0: gone" in caplog.text


def test_a_ramp_ends_at_the_first_rate_that_misses() -> None:
    result = on_embedded("ramp", slo=["p50_create_ms=0"])
    assert [step.held for step in result.ramp] == [False]
    assert result.held_rate is None
    assert not result.slos[0].met


# --- refusals, stops, what is wrong ---


def test_refusals_are_counted_by_code(tmp_path: Path) -> None:
    async def main() -> Result:
        async with serving(tmp_path, rates=(5, 5)) as url:
            return await run_on(
                http_target(access(url)), small("steady", rate=100.0), every_s=EVERY_S
            )

    result = asyncio.run(main())
    counts = result.counts
    assert counts.offered == counts.accepted + counts.refused == 50
    assert result.refusals == {"rate.limited": counts.refused}
    assert counts.completed == counts.accepted < 50


def test_a_server_that_goes_away_is_counted_and_ends_the_test(tmp_path: Path) -> None:
    async def main() -> Result:
        async with serving(tmp_path) as url:
            served = asyncio.current_task()
            assert served is not None
            target = http_target(access(url))
            options = small("steady", rate=30.0, duration_s=1.0, drain_s=1.0)
            watcher = _After("sending")
            running = asyncio.ensure_future(
                run_on(target, options, watcher=watcher, every_s=EVERY_S)
            )
            await watcher.heard.wait()
            await asyncio.sleep(0)
        return await running

    result = asyncio.run(main())
    assert result.counts.failed > 0
    assert "server.unreachable" in result.failures
    assert result.stopped_early is not None


class _After(Watcher):
    """Sets `heard` when a phase begins, and perhaps a stop with it."""

    def __init__(self, name: str, stop: asyncio.Event | None = None) -> None:
        self._name = name
        self._stop = stop
        self.heard = asyncio.Event()

    def phase(self, name: str) -> None:
        if name == self._name:
            self.heard.set()

    def sample(self, samples: Samples) -> None:
        if self.heard.is_set() and self._stop is not None and samples.last["accepted"]:
            self._stop.set()


def test_a_stop_gives_what_there_was() -> None:
    async def main() -> Result:
        stop = asyncio.Event()
        options = small("steady", rate=50.0, duration_s=600.0)
        watcher = _After("sending", stop)
        return await run_on(embedded_target(), options, stop=stop, watcher=watcher, every_s=EVERY_S)

    result = asyncio.run(main())
    assert result.stopped_early == "interrupted"
    assert 0 < result.counts.accepted < 1_000
    assert result.latencies["create"].count == result.counts.accepted


def test_what_a_target_lacks_is_told(tmp_path: Path) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("import toque\n\nclass Mine(toque.WorkflowEntrypoint):\n"
                     "    async def run(self, event, step):\n        return 1\n")  # fmt: skip

    async def main() -> None:
        async with serving(tmp_path, empty) as url:
            mine = small("burst", workflow="Mine", count=5)
            result = await run_on(http_target(access(url, "writer")), mine, every_s=EVERY_S)
            assert result.counts.completed == 5
            assert set(result.series["slots_used"]) == {None}  # metrics are for operators
            with pytest.raises(InvalidArgument, match="scope admin"):
                await run_on(http_target(access(url, "writer")), small("burst"))
            with pytest.raises(InvalidArgument, match="scope admin"):
                await run_on(http_target(access(url, "writer")), small("burst", workflow="Mine",
                                                                       limit=5))  # fmt: skip
            with pytest.raises(WorkflowNotFound, match="deploy it first"):
                await run_on(http_target(access(url)), small("burst", workflow="Other"))
            deployed = await run_on(http_target(access(url)), small("burst"), every_s=EVERY_S)
            assert deployed.counts.completed == 40
            with pytest.raises(InvalidArgument, match="with --data"):
                await run_on(http_target(access(url)), resolved("chaos"))
            with pytest.raises(InvalidArgument, match="share one process"):
                await run_on(http_target(access(url), tmp_path / "data"), resolved("chaos"))

    asyncio.run(main())


def test_no_server_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLI_RETRY_FOR_MS", 100)
    with pytest.raises(ServerUnreachable, match="no connection"):
        asyncio.run(run_on(http_target(access("http://127.0.0.1:9")), small("burst")))
    with pytest.raises(InvalidArgument, match="can't reach an embedded runtime"):
        asyncio.run(run_on(embedded_target(), small("burst", processes=2)))
    with pytest.raises(InvalidArgument, match="an embedded runtime has none"):
        asyncio.run(run_on(embedded_target(), resolved("chaos")))


def test_a_process_that_dies_fails_the_test_and_leaves_none_behind() -> None:
    async def main() -> None:
        fleet = await ProcessFleet.start(access("http://127.0.0.1:9"), 2)
        load = Load(
            prefix="lt",
            seed="1",
            streams=[
                Stream(group="create", workflow="W", seconds=60, in_flight=4, rate=1.0),
            ],
        )
        try:
            running = asyncio.ensure_future(fleet.run(load, asyncio.Event()))
            senders = [
                each
                for each in keeper.offspring([os.getpid()])
                if "toque.loadtest.sender" in keeper.command(each.pid)
            ]
            assert len(senders) == 2
            keeper.end(senders[:1])
            with pytest.raises(SenderLost, match="what it had counted is lost"):
                await running
        finally:
            await fleet.close()

    asyncio.run(main())
