"""Whatever is given to a method of the client, a wrong value is a typed error with an example.

Every public method is tried with every parameter set to values of wrong types; a method or a
parameter that is added without being named here fails the test.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from toque.api.client import Client
from toque.api.client_admin import AccountsClient, LimitsClient, ScriptsClient, TokensClient
from toque.api.client_http import connect
from toque.api.client_instance import Instance
from toque.api.wiring import embedded
from toque.runtime.entropy import SeededEntropy
from toque.runtime.errors import CallerError, InvalidArgument, ToqueError, UnencodableValue


class Reached(ToqueError):
    """The call got as far as the backend."""


class Nowhere:
    """A backend that takes no call."""

    account = "default"
    wait_max_ms = 60_000

    def with_options(self, options: Any) -> Nowhere:
        raise Reached

    def stream(self, *words: Any) -> Any:
        raise Reached

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **more: Any) -> Any:
            raise Reached(name)

        return call


def made(kind: type) -> Any:
    entropy = SeededEntropy(1)
    backend: Any = Nowhere()
    if kind is Client:
        return Client(backend, entropy)
    if kind is Instance:
        return Instance(Client(backend, entropy), "orders", "one")
    return kind(backend, entropy)


KINDS = (Client, Instance, AccountsClient, TokensClient, LimitsClient, ScriptsClient)
RIGHT: dict[str, Any] = {
    "workflow": "orders",
    "instances": [{"id": "a"}],
    "id": "one",
    "ids": ["a"],
    "change": "pause",
    "event_type": "go",
    "name": "fetch-1",
    "changes": 5,
    "path": __file__,
}
"""Values of the parameters that have no default."""
ANYTHING = {"params", "payload", "expected"}


WRONG = [
    object(),
    5,
    1.5,
    True,
    b"x",
    "",
    "a b",
    [],
    {},
    [None],
    [5],
    {"a": 1},
    ("a",),
    print,
    -1,
    10**400,
]
NOT_CALLS = {"close"}


def calls() -> list[tuple[type, str, str]]:
    """`(class, method, parameter)` of everything that may be given."""
    found = []
    for kind in KINDS:
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("_") or name in NOT_CALLS:
                continue
            for each in inspect.signature(method).parameters.values():
                if each.name not in {"self", *ANYTHING}:
                    found.append((kind, name, each.name))
    return found


async def outcome(kind: type, method: str, given: dict[str, Any]) -> BaseException | None:
    """What a call raises."""
    if "changes" in given:
        given = {**given, "running_max": given["changes"]}
        del given["changes"]
    try:
        found = getattr(made(kind), method)(**given)
        if hasattr(found, "__aiter__"):
            async for _ in found:
                break
        elif inspect.isawaitable(found):
            await found
    except BaseException as error:
        return error
    return None


@pytest.mark.parametrize(
    ("kind", "method", "parameter"), calls(), ids=lambda value: getattr(value, "__name__", value)
)
async def test_a_wrong_value_is_a_typed_error(kind: type, method: str, parameter: str) -> None:
    known = inspect.signature(getattr(kind, method)).parameters.values()
    right = {
        each.name: RIGHT[each.name]
        for each in known
        if each.name != "self" and each.default is inspect.Parameter.empty
    }
    fine = await outcome(kind, method, right)
    assert fine is None or isinstance(fine, Reached), fine
    for value in WRONG:
        error = await outcome(kind, method, {**right, parameter: value})
        assert error is None or isinstance(error, (Reached, CallerError)), (type(value), error)
        if value is WRONG[0]:
            assert isinstance(error, CallerError), (type(value), error)
            assert not isinstance(error, Reached)
            told = str(error)
            assert "Right:" in told or "for example" in told or "must be a string" in told, told


@pytest.mark.parametrize(
    "item", [None, 5, "a", ["id"], {"id": 5}, {"iid": "a"}, {"id": "a", "retention": 5},
             {"retention": ("soon", "later")}],
)  # fmt: skip
async def test_of_many_each_is_checked_before_any_is_sent(item: Any) -> None:
    with pytest.raises(CallerError):
        await made(Client).create_instances("orders", [{"id": "fine"}, item])


async def test_a_text_that_can_not_be_sent_is_refused_before_it_is() -> None:
    """Bytes of a command line that are no UTF-8 come as halves of surrogate pairs."""
    half = "\udcff"
    for work in (
        made(TokensClient).create(half),
        made(TokensClient).revoke(half),
        made(AccountsClient).create("shop", half),
        anext(made(Client).list_instances("orders", date_start=half)),
        anext(made(Client).delete_matching("orders", date_end=half)),
    ):
        with pytest.raises(InvalidArgument, match=r"without halves of surrogate pairs.*Right"):
            await work


async def test_a_payload_that_is_no_json_is_told() -> None:
    with pytest.raises(UnencodableValue):
        await made(Client).create_instance("orders", params=object())


@pytest.mark.parametrize(
    "given",
    [{"url": 5}, {"url": "localhost"}, {"url": "http://me:secret@here"}, {"token": 5},
     {"token": "a b"}, {"account": 5},
     {"retry_for": "soon"}, {"timeout": object()}],
)  # fmt: skip
def test_what_connect_is_given_is_checked(given: dict[str, Any]) -> None:
    with pytest.raises(CallerError) as caught:
        connect(**{"url": "http://127.0.0.1:1", **given})
    assert "a b" not in str(caught.value)


async def test_the_message_shows_what_was_given_and_what_is_right() -> None:
    with pytest.raises(InvalidArgument, match=r"change must be .* not None\. Right: 'pause'"):
        await made(Client).change_instances("orders", ["a"], None)
    with pytest.raises(InvalidArgument, match=r"request_id must be a text, not 5 \(int\)"):
        await made(Client).create_instance("orders", request_id=5)


@pytest.mark.parametrize(
    ("path", "workflows"),
    [(None, []), (5, []), ("", []), ("a\0b", []), ("data", Client), ("data", None), ("data", 5)],
    ids=["None", "5", "empty", "NUL", "class", "nothing", "number"],
)
async def test_what_embedded_is_given_is_checked(path: Any, workflows: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"Right: toque\.embedded"):
        async with embedded(path, workflows):
            pass
