"""The simulated network: whole frames in order or a fallen link, and every fault it can bring."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from toque.runtime.codec import pack
from toque.runtime.entropy import SeededEntropy
from toque.runtime.messages import WIRE_VERSION, Call, Frame, Reply
from toque.runtime.rpc import ShardServer
from toque.runtime.simloop import VirtualTimeLoop
from toque.runtime.simnet import SimNetwork, Weather, checksum, describe
from toque.runtime.simprocess import SimProcess


class Store:
    """As much of a store as a session asks for."""

    epoch = 3
    durable_seq = 0

    def verify_owner(self) -> None:
        """It is the owner."""


class EchoHost:
    """Answers each call with its arguments."""

    def __init__(self) -> None:
        self.store: Any = Store()
        self.calls: list[int] = []

    def deliver(self, call: Call, answer: Callable[[int, bool, bytes], None]) -> None:
        self.calls.append(call.id)
        answer(call.id, True, bytes(call.args))


class Rig:
    """A caller and a shard, and a network between them."""

    def __init__(self, seed: int = 1) -> None:
        self.world = VirtualTimeLoop()
        self.notes: list[tuple[str, ...]] = []
        self.network = SimNetwork(self.world, SeededEntropy(seed), self, frozenset({"set_limits"}))
        self.caller = SimProcess("f", self.world)
        self.owner = SimProcess("d0.1", self.world)
        self.host = EchoHost()
        self.network.serve("d0", self.owner, ShardServer(self.host, self.owner))
        self.answers: list[int] = []
        self.ups: list[int] = []
        self.downs = 0
        self.link = self.network.links_of(self.caller).open(
            "d0", self._on_frame, self.ups.append, self._on_down
        )

    def frame(self, source: str, dest: str, raw: bytes) -> None:
        self.notes.append(("frame", source, dest))

    def note(self, kind: str, *parts: object) -> None:
        self.notes.append((kind, *map(str, parts)))

    def _on_frame(self, raw: bytes) -> None:
        frame = msgspec.msgpack.decode(raw, type=Frame)
        self.answers += [reply.id for reply in frame.replies]

    def _on_down(self, error: BaseException | None) -> None:
        self.downs += 1

    def send(self, *ids: int, method: str = "get") -> None:
        calls = [Call(n, "Cell", "a", method, msgspec.Raw(pack([n]))) for n in ids]
        self.link.send(msgspec.msgpack.encode(Frame(WIRE_VERSION, 0, calls, [])))

    def advance(self, seconds: float) -> None:
        self.world.run_until_complete(asyncio.sleep(seconds))


@pytest.fixture
def rig_of() -> Iterator[Callable[[int], Rig]]:
    """Makes rigs from seeds, and closes their loops."""
    made: list[Rig] = []

    def make(seed: int) -> Rig:
        made.append(Rig(seed))
        return made[-1]

    yield make
    for rig in made:
        rig.world.close()


@pytest.fixture
def rig(rig_of: Callable[[int], Rig]) -> Rig:
    """A rig."""
    return rig_of(1)


def test_frames_arrive_in_order_whatever_their_delays(rig: Rig) -> None:
    rig.network.weather = Weather(delay_ms=5, tail=0.5, tail_ms=400)
    rig.advance(3)
    assert rig.ups == [3]
    for n in range(100):
        rig.send(n)
    rig.advance(60)
    assert rig.host.calls == rig.answers == list(range(100))
    assert rig.network.faults["delay"] > 20


def test_a_lost_frame_ends_the_connection_and_nothing_after_it_arrives(rig: Rig) -> None:
    rig.advance(1)
    rig.network.weather = Weather(loss=1.0)
    rig.send(1)
    rig.network.weather = Weather()
    rig.send(2)
    rig.advance(1)
    assert rig.host.calls == []
    assert rig.downs == 1
    assert len(rig.ups) == 2  # and it connects anew by itself
    rig.send(3)
    rig.advance(1)
    assert rig.answers == [3]


def test_an_answer_may_be_lost_after_the_effect(rig_of: Callable[[int], Rig]) -> None:
    found = 0
    for seed in range(30):
        rig = rig_of(seed)
        rig.advance(1)
        rig.network.weather = Weather(loss=0.5)
        rig.send(1)
        rig.advance(1)
        found += rig.host.calls == [1] and rig.answers == [] and rig.downs == 1
    assert found > 3


def test_a_stalled_connection_is_silent_and_falls_late(rig: Rig) -> None:
    rig.advance(1)
    rig.network.weather = Weather(stall=1.0, stall_ms=20_000)
    rig.send(1)
    rig.network.weather = Weather()
    rig.advance(0.05)
    assert rig.downs == 0
    rig.advance(21)
    assert (rig.downs, rig.host.calls) == (1, [])


def test_calls_are_repeated_later_to_whoever_owns_the_shard_then(rig: Rig) -> None:
    rig.advance(1)
    rig.network.weather = Weather(repeat=1.0, repeat_ms=5_000)
    rig.send(1, 2)
    rig.send(3, method="set_limits")
    rig.advance(0.005)
    newer, second = SimProcess("d0.2", rig.world), EchoHost()
    rig.network.serve("d0", newer, ShardServer(second, newer))
    rig.advance(6)
    assert sorted(rig.answers) == [1, 2, 3]
    assert sorted(rig.host.calls + second.calls) == [1, 1, 2, 2, 3]
    assert second.calls
    assert rig.network.faults["repeat"] == 2


def test_a_death_is_noticed_and_the_next_owner_found(rig: Rig) -> None:
    rig.advance(1)
    rig.network.withdraw("d0", rig.owner)
    rig.network.killed(rig.owner)
    rig.owner.kill()
    rig.send(1)
    rig.advance(5)
    assert (rig.downs, rig.answers) == (1, [])
    newer, second = SimProcess("d0.2", rig.world), EchoHost()
    second.store.epoch = 4
    rig.network.serve("d0", newer, ShardServer(second, newer))
    rig.advance(3)
    assert rig.ups == [3, 4]
    rig.send(2)
    rig.advance(1)
    assert (second.calls, rig.answers) == ([2], [2])


def test_a_partition_lasts_as_long_as_it_is_told_or_until_all_is_healed(rig: Rig) -> None:
    rig.advance(1)
    rig.network.block("f", "d0", rig.world.time() + 10)
    rig.send(1)
    rig.advance(9)
    assert (rig.downs, rig.host.calls) == (0, [])
    rig.network.heal()
    rig.advance(3)
    assert rig.downs == 1
    rig.send(2)
    rig.advance(1)
    assert rig.answers == [2]
    rig.link.close()
    rig.advance(1)
    assert rig.downs == 1


def test_frames_can_be_read() -> None:
    calls = [Call(7, "Cell", "a", "set", msgspec.Raw(pack([5])))]
    replies = [Reply(8, False, msgspec.Raw(pack(["x", "y", {}])))]
    raw = msgspec.msgpack.encode(Frame(WIRE_VERSION, 2, calls, replies))
    assert describe(raw) == "e2 Cell(a).set#7[5]; #8 ERROR ['x', 'y', {}]"
    assert checksum(raw) == checksum(bytes(raw)) != checksum(raw + b"x")
