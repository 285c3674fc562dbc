"""What a front end knows of tokens: at most a second old, however the registry does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from toque.api.accounts import Accounts, token_id_of
from toque.api.auth import Admission, TokenBook
from toque.api.calls import Caller
from toque.api.failures import Failures
from toque.api.identity_cache import IdentityCache
from toque.gatekeeper.messages import AccountInfo, IdentitySnapshot, TokenRecord
from toque.gatekeeper.refusals import TooManyFailures
from toque.runtime import limits
from toque.runtime.clock import ManualClock
from toque.runtime.codec import pack
from toque.runtime.entropy import SeededEntropy
from toque.runtime.errors import ShardUnavailable, Unauthorized
from toque.runtime.ids import EntityRef
from toque.runtime.simloop import VirtualTimeLoop

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)


class Registry:
    """The registry behind the router's port; `down` makes it fail, `late_s` answer late."""

    def __init__(self) -> None:
        self.tokens: dict[str, TokenRecord] = {}
        self.generation = 0
        self.calls = 0
        self.down = False
        self.late_s = 0.001

    def call(
        self, ref: EntityRef, method: str, *args: Any, timeout_ms: int | None = None,
        decode: Callable[[Any], Any] = msgspec.msgpack.decode,
    ) -> asyncio.Future[Any]:  # fmt: skip
        self.calls += 1
        return asyncio.ensure_future(self._answer(method, args, decode))

    async def _answer(self, method: str, args: Any, decode: Callable[[Any], Any]) -> Any:
        if self.down:
            await asyncio.sleep(0.01)
            raise ShardUnavailable("no owner")
        result = pack(getattr(self, method)(*args))
        await asyncio.sleep(self.late_s)
        return decode(result)

    def snapshot(self, known: int) -> IdentitySnapshot:
        if known == self.generation:
            return IdentitySnapshot(known, None, None)
        return IdentitySnapshot(
            self.generation, [AccountInfo("acme", "Acme", 1)], list(self.tokens.values())
        )

    def put_token(
        self, token_id: str, account: str, name: str, scope: str, digest: bytes, life_ms: int
    ) -> TokenRecord:
        self.generation += 1
        now_ms = ManualClock().now_ms()
        expires_ms = now_ms + life_ms if life_ms else 0
        made = TokenRecord(token_id, account, name, scope, digest, now_ms, expires_ms, 0)
        self.tokens[token_id] = made
        return made

    def revoke_token(self, account: str, token_id: str) -> None:
        self.generation += 1
        del self.tokens[token_id]


class Front:
    """A front end: its admission over a cache of its own."""

    def __init__(self, registry: Registry, seed: int = 1, failures: Failures | None = None) -> None:
        failures = Failures(10_000) if failures is None else failures
        entropy = SeededEntropy(seed)
        self.clock = ManualClock()
        caller = Caller(registry, entropy)
        self.cache = IdentityCache(caller)
        self.accounts = Accounts(caller, self.cache, self.clock, entropy)
        book = TokenBook({"local": "acme"})
        self.admission = Admission(book, self.cache, self.clock, failures)

    async def who(self, text: str, address: str = "10.0.0.1") -> str:
        return (await self.admission.principal(b"Bearer " + text.encode(), address)).name

    async def refuses(self, text: str) -> bool:
        try:
            await self.who(text)
        except Unauthorized:
            return True
        return False


async def test_a_token_made_here_or_elsewhere_is_known_at_once() -> None:
    registry = Registry()
    here, there = Front(registry), Front(registry, 2)
    first = await here.accounts.create_token("acme", "first", "read")
    assert await there.who(first.text) == "first"
    second = await here.accounts.create_token("acme", "second", "read")
    assert await here.who(second.text) == await there.who(second.text) == "second"
    assert first.text.startswith(f"tq_{first.record.id}_")
    assert len(first.record.id) == 12
    assert len(first.text.split("_")[2]) == 43  # 32 bytes
    assert first.record.digest == sha256(first.text.encode()).digest()


async def test_what_is_revoked_is_refused_here_at_once_and_elsewhere_within_a_second() -> None:
    registry = Registry()
    here, there = Front(registry), Front(registry, 2)
    made = await here.accounts.create_token("acme", "first", "read")
    loop = asyncio.get_running_loop()
    for pause in (0.0, 0.3, 0.8, 5.0):
        await asyncio.sleep(pause)
        assert await there.who(made.text) == "first"
    await here.accounts.revoke_token("acme", made.record.id)
    revoked_at = loop.time()
    assert await here.refuses(made.text)
    while not await there.refuses(made.text):
        assert loop.time() <= revoked_at + limits.IDENTITY_STALE_MAX_MS / 1000
        await asyncio.sleep(0.01)
    # and one that asks nothing meanwhile has learnt it by its next request
    made = await here.accounts.create_token("acme", "second", "read")
    assert await there.who(made.text) == "second"
    await here.accounts.revoke_token("acme", made.record.id)
    await asyncio.sleep(1.1)
    asked = await asyncio.gather(*(there.refuses(made.text) for _ in range(5)))
    assert asked == [True] * 5


async def test_a_revocation_while_a_refresh_is_under_way_is_not_missed() -> None:
    registry = Registry()
    here = Front(registry)
    made = await here.accounts.create_token("acme", "first", "read")
    assert await here.who(made.text) == "first"
    await asyncio.sleep(0.7)
    registry.late_s = 0.2
    assert await here.who(made.text) == "first"  # and refreshes in the background
    registry.late_s, keep = 0.001, registry.late_s
    await asyncio.sleep(0)  # the refresh has read the registry by now
    await here.accounts.revoke_token("acme", made.record.id)
    await asyncio.sleep(keep)  # and its answer comes after the revocation
    assert await here.refuses(made.text)


async def test_an_expired_token_is_refused_by_the_clock_alone() -> None:
    registry = Registry()
    here = Front(registry)
    made = await here.accounts.create_token("acme", "first", "read", expires_in_ms=5_000)
    here.clock.advance(4_999)
    assert await here.who(made.text) == "first"
    calls = registry.calls
    here.clock.advance(1)
    with pytest.raises(Unauthorized, match="expired"):
        await here.who(made.text)
    assert registry.calls == calls


async def test_calls_to_the_registry_are_few_whatever_is_asked() -> None:
    registry = Registry()
    here = Front(registry)
    made = await here.accounts.create_token("acme", "first", "read")
    calls = registry.calls
    for _ in range(100):
        await asyncio.gather(*(here.who(made.text) for _ in range(20)))
        await asyncio.sleep(0.02)
    assert registry.calls - calls <= 5  # in two seconds
    calls = registry.calls
    unknown = f"tq_{'x' * 12}_nothing"
    for _ in range(20):
        await asyncio.gather(*(here.refuses(unknown) for _ in range(20)))
    assert registry.calls - calls <= 21
    calls = registry.calls
    assert await here.who("local") == ""  # of this process
    assert await here.refuses("nonsense")
    assert registry.calls == calls


async def test_a_registry_that_is_away_for_a_while_stops_nobody_and_lets_nobody_in() -> None:
    registry = Registry()
    here = Front(registry)
    made = await here.accounts.create_token("acme", "first", "read")
    assert await here.who(made.text) == "first"
    registry.down = True
    loop = asyncio.get_running_loop()
    away_since = loop.time()
    while loop.time() < away_since + limits.IDENTITY_LOST_MAX_MS / 1000 - 1.5:
        asked_at = loop.time()
        assert await here.who(made.text) == "first"
        assert loop.time() - asked_at <= limits.IDENTITY_CALL_MS / 1000
        await asyncio.sleep(0.25)
    await asyncio.sleep(2)
    with pytest.raises(ShardUnavailable):
        await here.who(made.text)
    registry.down = False
    assert await here.who(made.text) == "first"


async def test_after_a_pause_an_old_outage_excuses_nothing() -> None:
    registry = Registry()
    here = Front(registry)
    made = await here.accounts.create_token("acme", "first", "read")
    assert await here.who(made.text) == "first"
    await asyncio.sleep(0.7)
    registry.down = True
    assert await here.who(made.text) == "first"
    await asyncio.sleep(3)
    registry.down = False
    await Front(registry, 2).accounts.revoke_token("acme", made.record.id)
    await asyncio.sleep(1)
    assert await here.refuses(made.text)


async def test_only_failures_are_slowed() -> None:
    registry = Registry()
    here = Front(registry, failures=Failures(burst=2, per_second=1))
    made = await here.accounts.create_token("acme", "first", "read")
    for _ in range(2):
        assert await here.refuses("tq_wrong")
    with pytest.raises(TooManyFailures) as caught:
        await here.who("tq_wrong")
    assert 0 < caught.value.data["retry_after_ms"] <= 1000
    for _ in range(5):
        assert await here.who(made.text) == "first"
    with pytest.raises(TooManyFailures):
        await here.who(f"tq_{made.record.id}_wrong")
    with pytest.raises(Unauthorized):
        await here.who("tq_wrong", "10.0.0.2")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"tq_abcdefghijkl_x", "abcdefghijkl"),
        (b"tq_abc_x", None),
        (b"tq_abcdefghijkl", None),
        (b"tk_abcdefghijkl_x", None),
        (b"", None),
        (b"tq_\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff_x", "\xff" * 12),
    ],
    ids=["right", "short", "parts", "prefix", "empty", "bytes"],
)
async def test_the_id_in_a_token(text: bytes, found: str | None) -> None:
    assert token_id_of(text) == found
