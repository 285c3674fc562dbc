"""Identity: accounts and tokens, repeats, bounds, and all of it after a crash too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.runtime.shards import Cluster
from toque.gatekeeper.identity import Identity
from toque.gatekeeper.messages import AccountInfo, IdentitySnapshot, TokenRecord
from toque.gatekeeper.refusals import (
    AccountAlreadyExists,
    AccountNotFound,
    TokenNotFound,
    TooManyAccounts,
    TooManyTokens,
)
from toque.runtime import limits
from toque.runtime.errors import InvalidArgument, InvalidId, RequestIdReused
from toque.runtime.ids import EntityRef
from toque.runtime.simloop import VirtualTimeLoop

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)
ROOT = EntityRef("Identity", "root")
LATER = 1 << 50
ONE, TWO = b"1" * 32, b"2" * 32


class Registry:
    """Calls to the registry, typed."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def ask(self, method: str, *args: Any) -> Any:
        return await self.cluster.router.call(ROOT, method, *args)

    async def snapshot(self, known: int = -1) -> IdentitySnapshot:
        return msgspec.convert(await self.ask("snapshot", known), IdentitySnapshot)

    async def token(self, token_id: str, digest: bytes = ONE, **changed: Any) -> TokenRecord:
        given = {"account": "acme", "name": "ci", "scope": "write", "expires": 0, **changed}
        found = await self.ask(
            "put_token", token_id, given["account"], given["name"], given["scope"], digest,
            given["expires"],
        )  # fmt: skip
        return msgspec.convert(found, TokenRecord)


@asynccontextmanager
async def registry_at(folder: Path) -> AsyncIterator[Registry]:
    cluster = Cluster(folder, {"Identity": Identity}, {})
    try:
        registry = Registry(cluster)
        await registry.ask("ensure_account", "acme")
        yield registry
    finally:
        await cluster.close()


async def test_what_was_made_is_there_after_a_restart(tmp_path: Path) -> None:
    async with registry_at(tmp_path) as registry:
        made = await registry.token("a", expires=LATER)
        gone = await registry.token("b")
        await registry.ask("revoke_token", "acme", "b")
        before = await registry.snapshot()
    async with registry_at(tmp_path) as registry:
        assert await registry.snapshot() == before
    assert before.tokens == [made]
    assert gone.id == "b"
    assert (made.account, made.scope, made.digest) == ("acme", "write", ONE)
    assert made.expires_ms == made.created_ms + LATER
    assert [account.id for account in before.accounts or ()] == ["acme"]


async def test_each_change_is_a_generation_and_nothing_newer_is_told_as_nothing(
    tmp_path: Path,
) -> None:
    async with registry_at(tmp_path) as registry:
        first = await registry.snapshot()
        await registry.token("a")
        await registry.token("a")  # the same again
        second = await registry.snapshot()
        await registry.ask("revoke_token", "acme", "a")
        await registry.ask("revoke_token", "acme", "a")
        third = await registry.snapshot()
        assert [first.generation, second.generation, third.generation] == [1, 2, 3]
        nothing = await registry.snapshot(third.generation)
        assert (nothing.accounts, nothing.tokens) == (None, None)


async def test_an_account_stays_on_the_plane_that_it_was_made_on(tmp_path: Path) -> None:
    async with registry_at(tmp_path) as registry:
        made = await registry.ask("put_account", "old", "old", "r1", "v1")
        assert await registry.ask("put_account", "old", "old", "r1", "v1") == made
        with pytest.raises(RequestIdReused, match="another control plane"):
            await registry.ask("put_account", "old", "old", "r1", "v2")
        for account, plane, other in (("old", "v2", "v1"), ("acme", "v1", "v2")):
            with pytest.raises(AccountAlreadyExists, match=f"made on control plane {other}"):
                await registry.ask("ensure_account", account, plane)
        assert await registry.ask("ensure_account", "old", None) == made
    async with registry_at(tmp_path) as registry:
        accounts = {each.id: each for each in (await registry.snapshot()).accounts or ()}
        assert {id: each.made_on for id, each in accounts.items()} == {"acme": "v2", "old": "v1"}
        assert accounts["old"] == msgspec.convert(made, AccountInfo)


async def test_an_account_is_made_once_and_its_request_may_be_repeated(tmp_path: Path) -> None:
    async with registry_at(tmp_path) as registry:
        made = await registry.ask("put_account", "beta", "Beta", "r1")
        assert await registry.ask("put_account", "beta", "Beta", "r1") == made
        with pytest.raises(AccountAlreadyExists):
            await registry.ask("put_account", "beta", "Beta", "r2")
        with pytest.raises(RequestIdReused):
            await registry.ask("put_account", "beta", "Betamax", "r1")
        with pytest.raises(AccountAlreadyExists):
            await registry.ask("put_account", "acme", "acme", "r3")
        with pytest.raises(InvalidId):
            await registry.ask("put_account", "*", "all", "r4")
        assert msgspec.convert(made, AccountInfo).name == "Beta"


async def test_a_repeated_request_renews_its_token_and_no_other(tmp_path: Path) -> None:
    async with registry_at(tmp_path) as registry:
        first = await registry.token("a", expires=LATER)
        await asyncio.sleep(1)
        again = await registry.token("a", TWO, expires=LATER)
        assert again == msgspec.structs.replace(first, digest=TWO), "it ends when the first would"
        for change in ({"name": "other"}, {"scope": "admin"}, {"account": "*"}, {"expires": 0}):
            with pytest.raises(RequestIdReused):
                await registry.token("a", TWO, **{"expires": LATER, **change})
        assert (await registry.snapshot()).tokens == [again]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"scope": "root"}, InvalidArgument),
        ({"name": ""}, InvalidArgument),
        ({"name": "a\nb"}, InvalidArgument),
        ({"name": "x" * (limits.LABEL_CHARS_MAX + 1)}, InvalidArgument),
        ({"account": "nobody"}, AccountNotFound),
    ],
    ids=["scope", "no-name", "line", "long", "account"],
)
async def test_bad_tokens_are_refused_and_change_nothing(
    tmp_path: Path, change: dict[str, str], error: type[Exception]
) -> None:
    async with registry_at(tmp_path) as registry:
        before = await registry.snapshot()
        with pytest.raises(error):
            await registry.token("a", **change)
        with pytest.raises(InvalidArgument):
            await registry.token("a", b"short")
        assert await registry.snapshot() == before


async def test_a_token_is_revoked_by_its_own_account_only(tmp_path: Path) -> None:
    async with registry_at(tmp_path) as registry:
        await registry.ask("put_account", "beta", "Beta", "r1")
        await registry.token("a")
        for account, token_id in (("beta", "a"), ("*", "a"), ("acme", "b")):
            with pytest.raises(TokenNotFound):
                await registry.ask("revoke_token", account, token_id)
        assert len((await registry.snapshot()).tokens or ()) == 1


async def test_accounts_and_tokens_are_bounded_and_what_is_over_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ACCOUNTS_MAX", 2)
    monkeypatch.setattr(limits, "TOKENS_PER_ACCOUNT_MAX", 2)
    monkeypatch.setattr(limits, "TOKENS_MAX", 3)
    async with registry_at(tmp_path) as registry:
        await registry.ask("put_account", "beta", "Beta", "r1")
        with pytest.raises(TooManyAccounts):
            await registry.ask("put_account", "gamma", "Gamma", "r2")
        await registry.token("a")
        await registry.token("b")
        with pytest.raises(TooManyTokens):
            await registry.token("c")
        await registry.token("c", account="beta")
        with pytest.raises(TooManyTokens):
            await registry.token("d", account="beta")
        await registry.ask("revoke_token", "acme", "a")
        with pytest.raises(TooManyTokens):  # its mark is still kept
            await registry.token("d")
        await asyncio.sleep(limits.TOKEN_REVOKED_KEPT_MS / 1000 + 1)
        await registry.token("d")
