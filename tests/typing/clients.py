"""What type checkers see of the clients; checked by `make check`, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, assert_type

import toque
from toque.api.client_admin import TokensClient
from toque.api.client_blocking_parts import BlockingTokens
from toque.api.client_values import CreateResult, InstanceLine, NewToken
from toque.api.watched import InstanceEvent


@dataclass
class Receipt:
    """An output."""

    number: int


async def asynchronous(client: toque.Client) -> None:
    """The async client."""
    instance = await client.create_instance("orders", "one", {"n": 1}, wait="5 s")
    assert_type(instance, toque.Instance)
    assert_type(instance.last, toque.InstanceStatus | None)
    assert_type(await instance.wait(timeout=5), toque.InstanceStatus)
    assert_type(await instance.output(Receipt), Receipt)
    assert_type(await instance.output(), Any)
    assert_type(client.list_instances("orders"), AsyncIterator[InstanceLine])
    assert_type(instance.events(), AsyncIterator[InstanceEvent])
    found = await client.create_instances("orders", [{"id": "a", "retention": ("1 day", 60)}])
    assert_type(found, list[CreateResult])
    assert_type(client.tokens, TokensClient)
    assert_type(await client.tokens.create("ci", "read"), NewToken)
    assert_type(client.with_options(timeout=5), toque.Client)


def blocking(client: toque.BlockingClient) -> None:
    """Its twin."""
    instance = client.create_instance("orders", "one", {"n": 1}, wait="5 s")
    assert_type(instance, toque.BlockingInstance)
    assert_type(instance.last, toque.InstanceStatus | None)
    assert_type(instance.wait(timeout=5), toque.InstanceStatus)
    assert_type(instance.output(Receipt), Receipt)
    assert_type(instance.output(), Any)
    assert_type(client.list_instances("orders"), Iterator[InstanceLine])
    assert_type(instance.events(), Iterator[InstanceEvent])
    found = client.create_instances("orders", [{"id": "a", "retention": ("1 day", 60)}])
    assert_type(found, list[CreateResult])
    assert_type(client.tokens, BlockingTokens)
    assert_type(client.tokens.create("ci", "read"), NewToken)
    with client.with_options(timeout=5) as other:
        assert_type(other, toque.BlockingClient)
