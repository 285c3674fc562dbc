"""The library that slows fsyncs: it is built, it slows, it counts; or it says what is missing."""

from __future__ import annotations

import shutil

import pytest

from bench import slow_fsync

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@needs_compiler
def test_each_fsync_takes_longer_and_is_counted() -> None:
    with slow_fsync.built() as shim:
        assert slow_fsync.probe_ms(shim, 20) >= 20
        assert shim.count() == 20
        assert shim.count() == 0


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="apt-get install gcc"), slow_fsync.built():
        raise AssertionError("built without a compiler")


def test_a_ratio_is_given_only_of_what_was_slowed() -> None:
    runs = {
        "toque fast": [{"w1": 1000, "w2": 4000, "slowed": 0}],
        "toque slow": [{"w1": 800, "w2": 1000, "slowed": 5}],
        "static fast": [{"w1": 10, "w2": 10, "slowed": 0}],
        "static slow": [{"w1": 10, "w2": 10, "slowed": 0}],
    }
    assert slow_fsync.ratios(runs, "toque") == {"w1": 0.8, "w2": 0.25}
    assert slow_fsync.ratios(runs, "static") == {}
    assert "| static | 10 | - | - | 10 | - | - |" in slow_fsync.report(runs, ["toque", "static"], 2)
