"""Tests keep their notes of limits to themselves."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _state_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
