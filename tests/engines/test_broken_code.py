"""Code that does not load is tried ever more seldom, by one at a time, and told once."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest

from toque.engines.broken_code import BrokenCode
from toque.runtime import limits
from toque.runtime.errors import ProgramRunsAtImport, WorkflowLoadError

CODE = ("shop", "ab" * 32)
RETRY_S = limits.CODE_RETRY_MS / 1_000
MOST_S = limits.CODE_RETRY_MAX_MS / 1_000


def test_it_is_tried_ever_more_seldom(caplog: pytest.LogCaptureFixture) -> None:
    broken, now, tries = BrokenCode(), 0.0, []
    while len(tries) < 8:
        try:
            broken.check(CODE, now)
        except WorkflowLoadError as refused:
            now += refused.data["retry_ms"] / 1_000
            continue
        tries.append(round(now))
        broken.failed(CODE, WorkflowLoadError("no module 'x'"), now)
    waits = [after - before for before, after in pairwise(tries)]
    assert waits == [5, 10, 20, 40, 60, 60, 60]
    assert len(caplog.records) == 1
    assert broken.told() == ["code abababababab of account shop: no module 'x'"]
    broken.failed(CODE, WorkflowLoadError("no module 'y'"), now)
    assert len(caplog.records) == 2, "another reason is told"


def test_one_tries_for_all_and_if_it_loads_all_may(caplog: pytest.LogCaptureFixture) -> None:
    broken = BrokenCode()
    broken.failed(CODE, WorkflowLoadError("no"), 0.0)
    broken.check(CODE, RETRY_S)
    with pytest.raises(WorkflowLoadError):
        broken.check(CODE, RETRY_S)
    broken.loaded(CODE)
    broken.check(CODE, RETRY_S)
    broken.check(CODE, RETRY_S)
    assert broken.told() == []
    assert caplog.records[-1].levelno == logging.WARNING


def test_other_code_is_not_held_back_and_what_ends_its_instances_is_not_kept() -> None:
    broken = BrokenCode()
    broken.failed(CODE, WorkflowLoadError("no"), 0.0)
    broken.check(("other", CODE[1]), 0.0)
    broken.failed(("other", CODE[1]), ProgramRunsAtImport("it runs"), 0.0)
    broken.check(("other", CODE[1]), 0.0)


def test_what_is_kept_is_bounded() -> None:
    broken = BrokenCode()
    for n in range(2 * limits.BROKEN_CODE_KEPT_MAX):
        broken.failed(("shop", f"{n:064}"), WorkflowLoadError("no"), 0.0)
    assert len(broken.told()) == limits.BROKEN_CODE_KEPT_MAX
