"""The blocking client: made from the async one, and the same over a real server."""

from __future__ import annotations

import gc
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import toque
from tests.api.test_cli import Served
from tests.test_docs import ROOT, load
from toque.api import client_blocking, client_blocking_parts
from toque.runtime.errors import InvalidArgument, OutcomeUnknown, WorkflowNotFound

TWIN = load(ROOT / "docs" / "twin.py")


@pytest.fixture
def client(plane: Any) -> Iterator[toque.BlockingClient]:
    with Served(plane) as served, toque.connect_blocking(served.url, plane.token) as found:
        yield found


def test_the_twin_is_up_to_date() -> None:
    for name, text in TWIN.texts().items():
        assert (ROOT / "api" / name).read_text() == text, "run: make docs"


def test_each_public_method_has_its_twin_with_the_same_words() -> None:
    blocking = {**vars(client_blocking_parts), **vars(client_blocking)}
    for name, twin in TWIN.TWINS.items():
        inner = blocking[name]
        for method, function in inspect.getmembers(inner, inspect.isfunction):
            if method.startswith("_"):
                continue
            other = getattr(blocking[twin], method)
            assert not inspect.iscoroutinefunction(other)
            assert inspect.getdoc(other) == inspect.getdoc(function)
            mine, its = inspect.signature(other), inspect.signature(function)
            assert list(mine.parameters) == list(its.parameters)
            assert [p.default for p in mine.parameters.values()] == [
                p.default for p in its.parameters.values()
            ]
        properties = [n for n, v in vars(inner).items() if isinstance(v, property)]
        assert all(isinstance(vars(blocking[twin])[n], property) for n in properties)


def test_it_does_what_the_async_client_does(client: toque.BlockingClient, plane: Any) -> None:
    plane.router.finishes_at_once = True
    instance = client.create_instance("orders", "one", {"n": 1}, wait=5)
    assert isinstance(instance, toque.BlockingInstance)
    assert (instance.id, instance.workflow) == ("one", "orders")
    assert instance.last is not None
    assert instance.last.output == instance.output() == {"done": True}
    found = client.create_instances("orders", ({"id": f"n{n}"} for n in range(120)))
    assert {each.outcome for each in found} == {"created"}
    assert len(list(client.list_instances("orders", per_page=50))) == 121
    for line in client.list_instances("orders", per_page=50):  # left early
        assert line.id
        break
    assert client.with_options(timeout=5).get_instance("orders", "n3").status().id == "n3"
    with pytest.raises(WorkflowNotFound):
        client.create_instance("nothing")
    with pytest.raises(InvalidArgument):
        client.create_instance("orders", request_id=5)  # type: ignore[arg-type]


def test_threads_may_share_it(client: toque.BlockingClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: client.create_instance("orders", f"t{n}").id, range(40)))
    assert sorted(made) == sorted(f"t{n}" for n in range(40))


def test_what_would_wait_for_itself_is_refused(client: toque.BlockingClient) -> None:
    with pytest.raises(InvalidArgument, match="wait for itself"):
        client.create_instances("orders", [{}], progress=lambda _: client.list_workflows())


def test_closing_ends_the_thread_and_a_later_call_is_told(client: toque.BlockingClient) -> None:
    (thread,) = [each for each in threading.enumerate() if each.name == "toque"]
    client.close()
    assert not thread.is_alive()
    with pytest.raises(InvalidArgument, match="closed"):
        client.list_workflows()
    client.close()


def test_closing_ends_what_other_threads_wait_for(client: toque.BlockingClient, plane: Any) -> None:
    instance = client.create_instance("orders", "one")
    client.create_instance("orders", "two")
    lines = client.list_instances("orders", per_page=1)  # and an iterator that nobody ends
    next(lines)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(instance.wait, "1 minute")
        while not plane.router.calls["wait"]:
            assert not waits.done(), waits.exception()
        client.close()
        with pytest.raises(OutcomeUnknown, match="closed before"):
            waits.result(10)
    del lines
    gc.collect()
