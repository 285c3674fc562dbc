"""Batched calls: batching, failures that say what they know, old owners, wire versions."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from toque.runtime import limits
from toque.runtime.codec import pack, unpack
from toque.runtime.errors import (
    Fenced,
    InvalidArgument,
    OutcomeUnknown,
    Overloaded,
    PayloadTooLarge,
    ProtocolMismatch,
    ShardUnavailable,
    to_wire,
)
from toque.runtime.ids import EntityRef, Placement
from toque.runtime.messages import WIRE_VERSION, Call, Frame, Reply
from toque.runtime.rpc import Router, Session
from toque.runtime.simloop import VirtualTimeLoop

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)
REF = EntityRef("Thing", "k")


class ManualLinks:
    """Links that a test moves by hand: it sees each frame and decides what comes back."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.full = False

    def open(self, shard, on_frame, on_up, on_down):
        self.on_frame, self.on_up, self.on_down = on_frame, on_up, on_down
        return self

    def send(self, frame: bytes) -> None:
        if self.full:
            raise Overloaded("full")
        self.frames.append(unpack(frame, Frame))

    def close(self) -> None:
        pass

    def reply(self, *replies: Reply, epoch: int = 1, version: int = WIRE_VERSION) -> None:
        self.on_frame(pack(Frame(version, epoch, [], list(replies))))


def router_over(links: ManualLinks) -> Router:
    return Router(Placement(), links, asyncio.get_running_loop())


def ok(call: Call, value: object) -> Reply:
    return Reply(call.id, True, msgspec.Raw(pack(value)))


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_calls_of_one_turn_travel_in_one_frame():
    links = ManualLinks()
    router = router_over(links)
    futures = [router.call(REF, "m", n) for n in range(5)]
    links.on_up(1)
    await turn()
    assert [len(frame.calls) for frame in links.frames] == [5]
    links.reply(*[ok(call, unpack(call.args)[0] * 10) for call in links.frames[0].calls])
    assert await asyncio.gather(*futures) == [0, 10, 20, 30, 40]
    router.close()


async def test_a_frame_keeps_to_its_bounds():
    links = ManualLinks()
    router = router_over(links)
    links_up = [router.call(REF, "m", b"x" * limits.MIB) for _ in range(20)]
    links.on_up(1)
    await turn()
    sizes = [sum(len(memoryview(c.args)) for c in frame.calls) for frame in links.frames]
    assert sum(len(frame.calls) for frame in links.frames) == len(links_up)
    assert max(sizes) <= limits.FRAME_BYTES_MAX
    assert len(sizes) > 1
    router.close()
    await asyncio.gather(*links_up, return_exceptions=True)


async def test_a_call_that_was_never_sent_is_unavailable_and_one_sent_is_unknown():
    links = ManualLinks()
    router = router_over(links)
    unsent = router.call(REF, "m", timeout_ms=1_000)
    with pytest.raises(ShardUnavailable):
        await unsent
    sent = router.call(REF, "m", timeout_ms=1_000)
    links.on_up(1)
    with pytest.raises(OutcomeUnknown):
        await sent
    assert len(links.frames) == 1  # the one that had timed out was not sent late
    router.close()


async def test_a_lost_link_fails_what_was_sent_and_keeps_what_was_not():
    links = ManualLinks()
    router = router_over(links)
    sent = router.call(REF, "m", 1)
    links.on_up(1)
    await turn()
    links.on_down(None)
    waiting = router.call(REF, "m", 2)
    with pytest.raises(OutcomeUnknown):
        await sent
    links.on_up(2)
    await turn()
    links.reply(ok(links.frames[-1].calls[0], "late but fine"), epoch=2)
    assert await waiting == "late but fine"
    router.close()


async def test_answers_of_an_older_owner_are_dropped():
    links = ManualLinks()
    router = router_over(links)
    future = router.call(REF, "m")
    links.on_up(7)
    await turn()
    call = links.frames[0].calls[0]
    links.reply(ok(call, "from the zombie"), epoch=6)
    assert not future.done()
    links.reply(ok(call, "from the owner"), epoch=7)
    assert await future == "from the owner"
    assert router.epoch_of("d0") == 7
    router.close()


async def test_a_remote_error_keeps_its_class_and_data():
    links = ManualLinks()
    router = router_over(links)
    future = router.call(REF, "m")
    links.on_up(1)
    await turn()
    error = InvalidArgument("no", {"field": "x"})
    links.reply(Reply(links.frames[0].calls[0].id, False, msgspec.Raw(pack(to_wire(error)))))
    with pytest.raises(InvalidArgument, match="no") as caught:
        await future
    assert caught.value.data == {"field": "x"}
    assert caught.value.remote
    router.close()


async def test_another_wire_version_is_refused_by_name():
    links = ManualLinks()
    router = router_over(links)
    future = router.call(REF, "m")
    links.on_up(1)
    await turn()
    links.reply(version=WIRE_VERSION + 1)
    with pytest.raises(ProtocolMismatch, match="wire version"):
        await future
    router.close()


async def test_a_full_link_refuses_at_once():
    links = ManualLinks()
    router = router_over(links)
    links.full = True
    future = router.call(REF, "m")
    links.on_up(1)
    with pytest.raises(Overloaded):
        await future
    router.close()


async def test_no_more_calls_wait_than_the_bound(monkeypatch):
    monkeypatch.setattr(limits, "LINK_PENDING_CALLS_MAX", 3)
    router = router_over(ManualLinks())
    futures = [router.call(REF, "m") for _ in range(4)]
    with pytest.raises(Overloaded):
        await futures[3]
    router.close()
    await asyncio.gather(*futures, return_exceptions=True)


class OwnedStore:
    """What a session asks of a store."""

    epoch = 3

    def __init__(self) -> None:
        self.durable_seq = 0
        self.fenced = False
        self.checks = 0

    def verify_owner(self) -> None:
        self.checks += 1
        if self.fenced:
            raise Fenced("newer owner")


class Echo:
    def __init__(self) -> None:
        self.store = OwnedStore()

    def deliver(self, call, answer):
        answer(call.id, True, pack(call.method))


def frame_of(*methods: str, version: int = WIRE_VERSION) -> bytes:
    calls = [Call(n, "Thing", "k", m, msgspec.Raw(pack([]))) for n, m in enumerate(methods)]
    return pack(Frame(version, 0, calls, []))


async def test_answers_of_one_turn_leave_in_one_frame_with_the_epoch():
    host, sent = Echo(), []
    session = Session(host, asyncio.get_running_loop(), sent.append)  # type: ignore[arg-type]
    session.receive(frame_of("a", "b"))
    await turn()
    (frame,) = [unpack(raw, Frame) for raw in sent]
    assert frame.epoch == 3
    assert [unpack(reply.body) for reply in frame.replies] == ["a", "b"]


async def test_ownership_is_checked_before_answers_leave():
    host, sent = Echo(), []
    session = Session(host, asyncio.get_running_loop(), sent.append)  # type: ignore[arg-type]
    host.store.durable_seq = 1
    session.receive(frame_of("a", "b"))
    await turn()
    assert host.store.checks == 1  # once for all answers of a turn
    host.store.fenced = True
    session.receive(frame_of("c"))
    await turn()
    (reply,) = unpack(sent[-1], Frame).replies
    assert not reply.ok
    assert unpack(reply.body)[0] == Fenced.code


async def test_a_caller_of_another_wire_version_is_told():
    host, sent = Echo(), []
    session = Session(host, asyncio.get_running_loop(), sent.append)  # type: ignore[arg-type]
    session.receive(frame_of("a", version=WIRE_VERSION + 1))
    await turn()
    (reply,) = unpack(sent[0], Frame).replies
    assert unpack(reply.body)[0] == ProtocolMismatch.code


async def test_what_is_too_large_for_a_frame_is_refused_to_its_caller_alone():
    links = ManualLinks()
    router = router_over(links)
    with pytest.raises(PayloadTooLarge):
        await router.call(REF, "m", b"x" * limits.FRAME_BYTES_MAX)
    future = router.call(REF, "m")
    links.on_up(1)
    await turn()
    assert [len(frame.calls) for frame in links.frames] == [1]
    host, sent = Echo(), []
    session = Session(host, asyncio.get_running_loop(), sent.append)  # type: ignore[arg-type]
    session.answer(1, True, b"x" * limits.FRAME_BYTES_MAX)
    session.answer(2, True, pack("small"))
    await turn()
    replies = {reply.id: reply for raw in sent for reply in unpack(raw, Frame).replies}
    assert unpack(replies[1].body)[0] == PayloadTooLarge.code
    assert replies[2].ok
    router.close()
    await asyncio.gather(future, return_exceptions=True)
