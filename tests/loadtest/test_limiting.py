"""A limit that a test changed is as it was, after a kill -9 too, by the next test."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.loadtest.serving import EVERY_S, access, serving, small
from toque.loadtest.limit_note import Note, claimed, keep, left_on, notes_folder
from toque.loadtest.limiting import limit_held
from toque.loadtest.run import run_on
from toque.loadtest.targets_http import Target, http_target
from toque.runtime.errors import InvalidArgument

HELD = "LoadHold"


async def limit_of(target: Target) -> int | None:
    return await target.limit_of(HELD)


def notes() -> list[str]:
    return [each.name for each in notes_folder().glob("*.json")]


async def killed(url: str, set_to: int, before: int) -> None:
    """What a test leaves that is killed: the limit, its note, and a lock that nobody holds."""
    async with http_target(access(url)) as target:
        await target.limit(HELD, set_to)
    note = Note(url, "default", HELD, set_to, before)
    with claimed(note) as file:
        keep(note, file)


def test_the_next_test_puts_back_what_a_killed_one_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> int | None:
        async with serving(tmp_path) as url:
            await killed(url, 3, 17)
            await run_on(http_target(access(url)), small("burst", count=2), every_s=EVERY_S)
            async with http_target(access(url)) as target:
                return await limit_of(target)

    assert asyncio.run(main()) == 17
    assert "the running limit of LoadHold is 17 again" in caplog.text
    assert notes() == []


def test_what_somebody_has_set_since_stays(tmp_path: Path) -> None:
    async def main() -> int | None:
        async with serving(tmp_path) as url, http_target(access(url)) as target:
            await killed(url, 3, 17)
            await target.limit(HELD, 40)
            async with limit_held(target, small("burst")):
                return await limit_of(target)

    assert asyncio.run(main()) == 40
    assert notes() == []


def test_a_limit_is_noted_while_a_test_holds_it_and_no_other_has_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as url, http_target(access(url)) as target:
            await target.limit(HELD, 9)
            async with limit_held(target, small("queue")):
                assert left_on(url, "default") == [Note(url, "default", HELD, 40, 9)]
                with pytest.raises(InvalidArgument, match="another load test has set"):
                    async with limit_held(target, small("queue")):
                        pass
                async with limit_held(target, small("burst")):
                    assert await limit_of(target) == 40  # as that test still runs
            assert (await limit_of(target), notes()) == (9, [])

    asyncio.run(main())


def test_a_token_that_may_not_leaves_no_note(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as url, http_target(access(url, "writer")) as target:
            with pytest.raises(InvalidArgument, match="scope admin"):
                async with limit_held(target, small("queue")):
                    pass

    asyncio.run(main())
    assert notes() == []


def test_no_place_for_notes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(InvalidArgument, match="XDG_STATE_HOME"), claimed(Note("u", "a", None, 1)):
        pass


@pytest.mark.parametrize(
    "url", ["http://localhost:8787", "http://[::1]:8787/", "http://LOCALHOST.:8787"]
)
def test_a_server_is_the_same_by_all_names_of_this_machine(url: str) -> None:
    one, other = (Note(each, "default", HELD, 3, 17) for each in ("http://127.0.0.1:8787", url))
    with claimed(one) as file:
        keep(one, file)
        with pytest.raises(InvalidArgument, match="another load test"), claimed(other):
            pass
        assert left_on(url, "default") == [one]
    for elsewhere in ("http://127.0.0.1:8788", "https://127.0.0.1", "http://10.0.0.1:8787"):
        assert left_on(elsewhere, "default") == []
    file.unlink()
