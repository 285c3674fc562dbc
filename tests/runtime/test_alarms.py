"""Alarms: whatever comes between, one that was set is handled, or stays."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.shards import Cluster
from toque.runtime import limits, pacing
from toque.runtime.alarms import _DUE_NEXT, ALARMS, AlarmDriver, Firing
from toque.runtime.entity import DurableObject
from toque.runtime.errors import Overloaded, ToqueError
from toque.runtime.ids import EntityRef
from toque.runtime.simloop import VirtualTimeLoop
from toque.runtime.storage import KV
from toque.runtime.store_sqlite import SqliteStore
from toque.runtime.tables import Query

HOUR_MS = 3_600_000
WHO = EntityRef("Sleeper", "s")


class HastyLoop(VirtualTimeLoop):
    """A timer that is due now stands before what comes later in this turn, as on uvloop."""

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        if delay < 0.0005:
            return self.call_soon(callback, *args, context=context)
        return super().call_later(delay, callback, *args, context=context)


pytestmark = pytest.mark.loop(factory=HastyLoop)


class Sleeper(DurableObject):
    """Does in run `n` of its handler what `scripts[n]` says; nothing if there is none."""

    scripts: list[Callable[[Sleeper], Any]] = []
    runs: list[int] = []  # the retry counts
    began_ms: list[int] = []
    inside = 0  # of one life
    is_stubborn = True

    async def alarm(self, info: Any) -> None:
        number = len(Sleeper.runs)
        Sleeper.runs.append(info.retry_count)
        Sleeper.began_ms.append(self.ctx.clock.now_ms())
        assert self.inside == 0, "two handlers at a time"
        self.inside += 1
        try:
            if number < len(Sleeper.scripts):
                await Sleeper.scripts[number](self)
        finally:
            self.inside -= 1

    def set_in(self, in_ms: int) -> None:
        self.ctx.set_alarm(self.ctx.clock.now_ms() + in_ms)

    def clear(self) -> None:
        self.ctx.delete_alarm()

    def due(self) -> int | None:
        return self.ctx.alarm_due_ms()

    async def crash_itself(self) -> None:
        async def work() -> None:
            raise RuntimeError("reset")

        await self.ctx.block_concurrency_while(work)

    def set_unstored(self, in_ms: int) -> None:
        self.set_in(in_ms)
        self.ctx.put(ALARMS, ("Sleeper", "other", 1 << 80, 0))  # no store takes that number


@pytest.fixture
def cluster(tmp_path):
    Sleeper.scripts, Sleeper.runs, Sleeper.began_ms = [], [], []
    return lambda: Cluster(tmp_path, {"Sleeper": Sleeper})


def script(*works: Callable[[Sleeper], Any]) -> None:
    Sleeper.scripts = list(works)


def row(shards: Cluster) -> Any:
    found = shards.stores["d0"].get(ALARMS, WHO)
    return None if found is None else tuple(found[2:])


async def until(done: Callable[[], bool], seconds: float = 600) -> None:
    """In small steps, so that what comes after is seen."""
    async with asyncio.timeout(seconds):
        while not done():
            await asyncio.sleep(0.001)


async def again_now(self: Sleeper) -> None:
    await asyncio.sleep(0.01)
    self.set_in(0)


async def hangs(self: Sleeper) -> None:
    await asyncio.sleep(100_000)


async def raises(self: Sleeper) -> None:
    raise RuntimeError("not yet")


async def test_an_alarm_set_by_a_handler_stays_while_it_is_handled(cluster):
    """The end of the first run may come after the beginning of what it has set."""
    shards = cluster()
    script(again_now, hangs)
    await shards.router.call(WHO, "set_in", 0)
    await until(lambda: len(Sleeper.runs) == 2)
    await asyncio.sleep(5)
    assert row(shards) is not None
    shards.crash("d0")
    shards.open("d0")
    await until(lambda: len(Sleeper.runs) == 3)
    await asyncio.sleep(1)
    assert row(shards) is None
    await shards.close()


async def test_an_alarm_set_by_a_handler_is_repeated_if_it_fails(cluster):
    shards = cluster()
    script(again_now, raises)
    await shards.router.call(WHO, "set_in", 0)
    await asyncio.sleep(60)
    assert Sleeper.runs == [0, 0, 1]
    assert row(shards) is None
    await shards.close()


@pytest.mark.parametrize("in_ms", [0, 500, 5_000, HOUR_MS])
async def test_an_alarm_set_while_a_handler_runs_waits_for_its_end(cluster, in_ms):
    """Set from outside, to before or after the handler's end: never two at a time, never lost."""
    shards = cluster()

    async def takes_a_second(self: Sleeper) -> None:
        await asyncio.sleep(1)

    script(takes_a_second)
    start = shards.clock.now_ms()
    await shards.router.call(WHO, "set_in", 0)
    await until(lambda: len(Sleeper.runs) == 1)
    assert await shards.router.call(WHO, "due") is None
    await shards.router.call(WHO, "set_in", in_ms)
    due_ms = await shards.router.call(WHO, "due")
    assert due_ms is not None
    await asyncio.sleep(2 * HOUR_MS / 1000)
    assert Sleeper.runs == [0, 0]
    assert abs(Sleeper.began_ms[1] - max(start + 1_000, due_ms)) < 50
    assert row(shards) is None
    await shards.close()


@pytest.mark.parametrize("due_in_ms", [HOUR_MS - 1_000, HOUR_MS + 3_000])
@pytest.mark.parametrize("wait_ms", [0, 4_000, 70_000])
async def test_what_a_clock_set_forward_has_made_due_fires_before_long(cluster, due_in_ms, wait_ms):
    """And what is set after that fires in time."""
    shards = cluster()
    await shards.router.call(WHO, "set_in", due_in_ms)
    await asyncio.sleep(wait_ms / 1000)
    shards.clock.skew_ms += HOUR_MS
    await shards.router.call(EntityRef("Sleeper", "late"), "set_in", 1_000)
    due_ms = await shards.router.call(EntityRef("Sleeper", "late"), "due")
    await asyncio.sleep((limits.ALARM_LOOK_MS + 3_050) / 1000)
    assert len(Sleeper.runs) == 2
    assert min(Sleeper.began_ms) - due_ms < limits.ALARM_LOOK_MS
    await shards.close()


async def test_a_clock_that_is_set_back_and_right_again_makes_no_alarm_late(cluster):
    shards = cluster()
    await shards.router.call(WHO, "set_in", 10_000)
    due_ms = await shards.router.call(WHO, "due")
    shards.clock.skew_ms -= HOUR_MS
    await asyncio.sleep(70)
    assert Sleeper.runs == [], "the clock did not show that time"
    shards.clock.skew_ms += HOUR_MS
    await asyncio.sleep(limits.ALARM_LOOK_MS / 1000 + 0.05)
    assert Sleeper.runs == [0]
    assert Sleeper.began_ms[0] - due_ms < 60_050 + limits.ALARM_LOOK_MS
    await shards.close()


@pytest.mark.parametrize("ends", [None, raises], ids=["well", "badly"])
async def test_what_is_deleted_while_a_handler_runs_stays_deleted(cluster, ends):
    shards = cluster()

    async def clears(self: Sleeper) -> None:
        self.set_in(HOUR_MS)
        self.clear()
        if ends is not None:
            await ends(self)

    script(clears)
    await shards.router.call(WHO, "set_in", 0)
    await asyncio.sleep(2 * HOUR_MS / 1000)
    assert (Sleeper.runs, row(shards)) == ([0], None)
    await shards.close()


async def test_a_handler_that_sets_an_alarm_and_fails_keeps_the_new_one(cluster):
    shards = cluster()

    async def sets_and_raises(self: Sleeper) -> None:
        self.set_in(HOUR_MS)
        raise RuntimeError("after the write")

    script(sets_and_raises)
    start = shards.clock.now_ms()
    await shards.router.call(WHO, "set_in", 0)
    await asyncio.sleep(1)
    assert row(shards)[1] == 0
    await asyncio.sleep(2 * HOUR_MS / 1000)
    assert Sleeper.runs == [0, 0]
    assert abs(Sleeper.began_ms[1] - start - HOUR_MS) < 1_000
    await shards.close()


async def test_a_handler_that_sets_an_alarm_for_now_and_fails_does_not_spin(cluster):
    shards = cluster()

    async def sets_and_raises(self: Sleeper) -> None:
        self.set_in(0)
        raise RuntimeError("after the write")

    script(*[sets_and_raises] * 1_000)
    await shards.router.call(WHO, "set_in", 0)
    await asyncio.sleep(60)
    assert 2 < len(Sleeper.runs) <= 1 + 60_000 / (0.75 * limits.ALARM_BACKOFF_MIN_MS)
    assert row(shards) is not None
    await shards.close()


async def test_a_handler_that_was_cancelled_has_not_ended_well(cluster):
    shards = cluster()

    async def is_cancelled(self: Sleeper) -> None:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone

    script(is_cancelled)
    await shards.router.call(WHO, "set_in", 0)
    await asyncio.sleep(60)
    assert Sleeper.runs == [0, 1]
    await shards.close()


async def hangs_though_cancelled(self: Sleeper) -> None:
    while Sleeper.is_stubborn:
        try:
            await asyncio.sleep(100_000)
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize("how", [hangs, hangs_though_cancelled], ids=lambda how: how.__name__)
async def test_a_handler_that_does_not_end_holds_back_later_alarms_for_a_while_only(
    cluster, how, monkeypatch
):
    shards = cluster()
    script(how)
    await shards.router.call(WHO, "set_in", 0)
    await until(lambda: len(Sleeper.runs) == 1)
    driver = shards.hosts["d0"].alarms
    await asyncio.sleep(limits.ALARM_HANDLER_MAX_MS / 1000 - 1)
    assert driver.longest_ms() > limits.ALARM_HANDLER_MAX_MS - 2_000
    assert len(Sleeper.runs) == 1
    await asyncio.sleep((limits.ALARM_CANCEL_MAX_MS + 2 * limits.ALARM_BACKOFF_MIN_MS) / 1000 + 2)
    assert len(Sleeper.runs) == 2
    assert (row(shards), driver.longest_ms()) == (None, 0)
    monkeypatch.setattr(Sleeper, "is_stubborn", False)
    await shards.close()


@pytest.mark.parametrize("then", [None, 0, HOUR_MS])
async def test_an_alarm_outlives_a_reset_of_its_entity(cluster, then):
    """`then`: what was set while the handler ran that the reset has cut off."""
    shards = cluster()
    script(hangs)
    await shards.router.call(WHO, "set_in", 0)
    await until(lambda: len(Sleeper.runs) == 1)
    if then is not None:
        await shards.router.call(WHO, "set_in", then)
    with pytest.raises(ToqueError):
        await shards.router.call(WHO, "crash_itself")
    assert row(shards) is not None
    await asyncio.sleep(2 * HOUR_MS / 1000)
    assert len(Sleeper.runs) == 2
    assert row(shards) is None
    await shards.close()


@pytest.mark.parametrize("in_ms", [0, 5 * HOUR_MS])
async def test_an_alarm_whose_setting_was_not_stored_fires_at_its_old_time(cluster, in_ms):
    shards = cluster()
    start = shards.clock.now_ms()
    await shards.router.call(WHO, "set_in", 40_000)
    with pytest.raises(ToqueError):
        await shards.router.call(WHO, "set_unstored", in_ms)
    await asyncio.sleep(HOUR_MS / 1000)
    late_ms = [at - start - 40_000 for at in Sleeper.began_ms]
    assert [0 <= late < 5_000 for late in late_ms if late > -30_000] == [True]
    await shards.close()


async def test_a_store_that_takes_no_more_keeps_the_alarm(cluster, monkeypatch):
    shards = cluster()
    store = shards.stores["d0"]
    script(raises)
    await shards.router.call(WHO, "set_in", 1_000)
    await asyncio.sleep(0.5)

    def full(*args: Any) -> int:
        raise Overloaded("the batch is full.")

    with monkeypatch.context() as patched:
        patched.setattr(store, "put", full)
        patched.setattr(store, "delete", full)
        await until(lambda: len(Sleeper.runs) == 2)  # failed, then well, and neither is written
        await asyncio.sleep(0.5)
        assert row(shards) is not None
    await asyncio.sleep(60)
    assert (len(Sleeper.runs), row(shards)) == (3, None)
    await shards.close()


async def test_an_alarm_whose_setting_was_refused_is_as_before(cluster, monkeypatch):
    shards = cluster()
    await shards.router.call(WHO, "set_in", 5_000)
    due_ms = await shards.router.call(WHO, "due")

    def full(*args: Any) -> int:
        raise Overloaded("the batch is full.")

    with monkeypatch.context() as patched:
        patched.setattr(shards.stores["d0"], "put", full)
        patched.setattr(shards.stores["d0"], "delete", full)
        for method, args in (("set_in", (HOUR_MS,)), ("clear", ())):
            with pytest.raises(Overloaded):
                await shards.router.call(WHO, method, *args)
    assert await shards.router.call(WHO, "due") == due_ms
    await asyncio.sleep(10)
    assert Sleeper.runs == [0]
    await shards.close()


# --- all together, at random, against a model ---


class Dice(DurableObject):
    """An entity that does with its alarm whatever the dice say; `Model` sees it."""

    model: Model

    def act(self, what: int, in_ms: int) -> None:
        model, name = Dice.model, self.ctx.ref.key
        if what < 7:
            self.ctx.set_alarm(due_ms := self.ctx.clock.now_ms() + in_ms)
            model.said(name, due_ms, self.ctx)
        elif what < 8:
            self.ctx.delete_alarm()
            model.said(name, None, self.ctx)
        elif what < 9:
            self.ctx.evict()

    async def alarm(self, info: Any) -> None:
        model, name = Dice.model, self.ctx.ref.key
        began = (model.life, len(model.said_of[name]), self.ctx.clock.now_ms())
        key = (model.life, name, id(self))
        assert key not in model.inside, "two handlers at a time"
        model.inside.add(key)
        try:
            for _ in range(model.roll(3)):
                if model.roll(2):
                    await asyncio.sleep(model.roll(30) / 10)
                self.act(model.roll(14), model.some_ms())
            if model.roll(4) == 0:
                raise RuntimeError("the dice say so")
        finally:
            model.inside.discard(key)
        if not self.ctx.ended:  # type: ignore[attr-defined]
            model.ended[name].append(began)

    async def cut(self) -> None:
        async def work() -> None:
            raise RuntimeError("reset")

        await self.ctx.block_concurrency_while(work)


class Model:
    """What was said of each alarm and is on disk, and which handlers have ended well."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.said_of: dict[str, list[list[Any]]] = {name: [] for name in "abc"}
        self.ended: dict[str, list[tuple[int, int, int]]] = {name: [] for name in "abc"}
        self.inside: set[Any] = set()
        self.life = 0
        self.is_calm = False

    def roll(self, sides: int) -> int:
        return 0 if self.is_calm and sides < 4 else self.random.randrange(sides)

    def some_ms(self) -> int:
        return self.random.choice([0, 0, 0, 1, 300, 2_000, 40_000, 90_000])

    def said(self, name: str, due_ms: int | None, ctx: Any) -> None:
        entry = [due_ms, False]
        self.said_of[name].append(entry)

        def durable(error: BaseException | None) -> None:
            entry[1] = error is None

        store = ctx._store
        store.when_durable(store.write_seq, durable)

    def crashed(self) -> None:
        self.life += 1
        self.inside.clear()
        for entries in self.said_of.values():
            entries[:] = [entry for entry in entries if entry[1]]

    def owed(self) -> list[str]:
        """Alarms that were set last and that no handler has answered."""
        return [
            f"{name}: {entries[-1][0]}"
            for name, entries in self.said_of.items()
            if entries
            and (due_ms := entries[-1][0]) is not None
            and not any(at >= due_ms and known >= len(entries) for _, known, at in self.ended[name])
        ]


async def play(seed: int, folder: Path) -> list[str]:
    """Calls, crashes and resets by the dice, then two calm hours: what is owed or left then."""
    model = Dice.model = Model(seed)
    folder.mkdir()
    shards = Cluster(folder, {"Dice": Dice})

    def crash() -> None:
        shards.crash("d0")
        model.crashed()
        shards.open("d0")

    for _ in range(model.random.randrange(4, 14)):
        name = model.random.choice("abc")
        what = model.random.randrange(12)
        call = ("cut",) if what == 11 else ("act", model.random.randrange(9), model.some_ms())
        calling = asyncio.ensure_future(shards.router.call(EntityRef("Dice", name), *call))
        await asyncio.sleep(model.random.choice([0, 0.001, 0.006, 0.5, 3, 50]))
        if what == 10:
            crash()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
    await shards.stores["d0"].flush()
    if model.random.random() < 0.5:
        crash()
    model.is_calm = True
    await asyncio.sleep(2 * HOUR_MS / 1000)
    left = [name for name in "abc" if shards.stores["d0"].get(ALARMS, ("Dice", name))]
    await shards.close()
    return [*model.owed(), *left]


async def test_no_alarm_is_ever_lost(tmp_path):
    for seed in range(int(os.environ.get("TOQUE_ALARM_SEEDS", "25"))):
        assert await play(seed, tmp_path / str(seed)) == [], seed


async def test_no_alarm_is_lost_though_more_are_due_than_the_window_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "ALARM_WINDOW_ROWS", 1)
    monkeypatch.setattr(limits, "ALARMS_PER_TURN_MAX", 1)
    for seed in range(1_000, 1_000 + int(os.environ.get("TOQUE_ALARM_SEEDS", "25"))):
        assert await play(seed, tmp_path / str(seed)) == [], seed


async def test_the_model_finds_an_end_that_deletes_what_was_set_meanwhile(tmp_path, monkeypatch):
    handled = AlarmDriver.handled

    def blind(self: AlarmDriver, firing: Firing) -> int | None:
        firing.replaced = False
        return handled(self, firing)

    monkeypatch.setattr(AlarmDriver, "handled", blind)
    for seed in range(25):
        if await play(seed, tmp_path / str(seed)):
            return
    pytest.fail("25 seeds did not find it")


# --- a herd ---


class One(DurableObject):
    """Notes that its alarm fired, and when it was asked something."""

    fired: list[str] = []

    def alarm(self, info: Any) -> None:
        One.fired.append(self.ctx.ref.key)
        self.ctx.put(KV, (*self.ctx.ref, "fired", b""))

    def set_at(self, due_ms: int) -> None:
        self.ctx.set_alarm(due_ms)

    def ask(self) -> int:
        return len(One.fired)


async def herd(tmp_path: Path, count: int, due_ms: int = 10_000) -> Cluster:
    """A shard whose `count` alarms are overdue when it is opened again."""
    One.fired = []
    shards = Cluster(tmp_path, {"One": One})
    at_ms = shards.clock.now_ms() + due_ms
    refs = [EntityRef("One", f"o{n}") for n in range(count)]
    await asyncio.gather(*(shards.router.call(ref, "set_at", at_ms) for ref in refs))
    shards.crash("d0")
    await asyncio.sleep(2 * due_ms / 1000)
    return shards


async def test_a_herd_leaves_each_turn_of_the_loop_to_others_too(tmp_path):
    shards = await herd(tmp_path, 10 * limits.ALARMS_PER_TURN_MAX)
    shards.open("d0")
    before, most = 0, 0
    while len(One.fired) < 10 * limits.ALARMS_PER_TURN_MAX:
        await asyncio.sleep(0)
        most = max(most, len(One.fired) - before)
        before = len(One.fired)
    assert 0 < most <= limits.ALARMS_PER_TURN_MAX
    await shards.close()


async def test_a_herd_waits_while_the_disk_is_behind(tmp_path, monkeypatch):
    """Else the open batch would be full, and callers would be refused."""
    monkeypatch.setattr(pacing, "_ROWS_SPARED", limits.BATCH_ROWS_MAX - 100)
    count = 20 * limits.ALARMS_PER_TURN_MAX
    shards = await herd(tmp_path, count)
    shards.open("d0")
    group, most = shards.stores["d0"]._group, 0
    while len(One.fired) < count:
        await asyncio.sleep(0.001)
        most = max(most, group.open_rows)
    assert most <= 100 + 2 * limits.ALARMS_PER_TURN_MAX
    await shards.close()


async def test_a_herd_larger_than_the_window_is_read_once(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "ALARM_WINDOW_ROWS", 100)
    monkeypatch.setattr(limits, "ALARMS_PER_TURN_MAX", 10)
    shards = await herd(tmp_path, 1_000)
    read = 0
    query_now = SqliteStore.query_now

    def counted(self: SqliteStore, query: Query, params: Any = ()) -> list[Any]:
        nonlocal read
        rows = query_now(self, query, params)
        read += len(rows) if query is _DUE_NEXT else 0
        return rows

    monkeypatch.setattr(SqliteStore, "query_now", counted)
    shards.open("d0")
    await asyncio.sleep(5)
    assert sorted(One.fired) == sorted(f"o{n}" for n in range(1_000))
    assert read <= 1_100
    await shards.close()


async def test_an_alarm_set_while_a_herd_wakes_is_not_late(tmp_path, monkeypatch):
    """It may be neither in memory nor on disk yet when the next part of the herd is read."""
    monkeypatch.setattr(limits, "ALARM_WINDOW_ROWS", 20)
    monkeypatch.setattr(limits, "ALARMS_PER_TURN_MAX", 5)
    shards = await herd(tmp_path, 400)
    shards.open("d0")
    late: list[str] = []
    calls = []
    while len(One.fired) < 400:
        due_ms = shards.clock.now_ms() + 1 + len(late) % 40
        late.append(f"late{len(late)}")
        calls.append(shards.router.call(EntityRef("One", late[-1]), "set_at", due_ms))
        await asyncio.sleep(0)
    assert len(late) > 40
    await asyncio.gather(*calls)
    await asyncio.sleep(1)
    assert set(late) <= set(One.fired)
    await shards.close()
