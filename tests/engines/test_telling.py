"""What people can learn of an error: its traceback, what a group holds, when things were queued."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.engines.rig import on_virtual_time, rigged
from toque.engines.failures import record_of
from toque.engines.step import WorkflowStep
from toque.engines.workflow import workflow

pytestmark = pytest.mark.loop(factory=on_virtual_time)


async def test_the_traceback_of_an_error_is_in_the_log(tmp_path: Path, caplog: Any) -> None:
    @workflow
    async def run(event: Any, step: WorkflowStep) -> None:
        def broken() -> None:
            raise RuntimeError("within the body")

        try:
            await step.do("broken", broken, config={"retries": {"limit": 0, "delay": 0}})
        except RuntimeError:
            raise LookupError("within run") from None

    caplog.set_level(logging.INFO, "toque.workflow")
    async with rigged(tmp_path) as rig:
        await rig.create(run)
        assert (await rig.ended()).status == "errored"
        assert 'raise RuntimeError("within the body")' in caplog.text
        assert 'raise LookupError("within run")' in caplog.text
        assert "broken-1" in caplog.text
        caplog.clear()


def test_a_group_of_errors_names_those_within() -> None:
    group = ExceptionGroup("two", [ValueError("a"), ExceptionGroup("in", [KeyError("b")])])
    assert record_of(group).message == (
        "two (2 sub-exceptions): ValueError: a; ExceptionGroup: in (1 sub-exception): KeyError: 'b'"
    )


async def test_an_instance_was_queued_before_it_started_though_it_woke_since(
    tmp_path: Path,
) -> None:
    @workflow
    async def run(event: Any, step: WorkflowStep) -> None:
        await step.sleep("nap", 5)

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        view = await rig.status("complete")
        assert view.started_ms is not None
        assert view.ended_ms is not None
        assert view.queued_ms <= view.started_ms <= view.ended_ms
