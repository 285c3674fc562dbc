"""The pytest plugin: the fixture `toque_sim`, and seeds. Installed with toque, by its entry point.

    @toque_seeds(50)
    def test_order(toque_sim): ...

plays the test under 50 seeds of mishaps, each a test of its own (`test_order[seed17]`), so that
pytest-xdist spreads them. `--toque-seeds 500` asks for more of them, `--toque-seed 17` for one.
An `async def` test that takes the fixture is run here if no other plugin runs it. Nothing of toque
is imported before a test takes the fixture, since pytest loads this file in every run.
"""

from __future__ import annotations

import asyncio
import inspect
import shlex
from collections.abc import Generator, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from ..runtime.limits import TESTKIT_SEEDS_MAX

if TYPE_CHECKING:
    from .factory import SimFactory

MARK = "toque_seeds"
_FIXTURE = "toque_sim"
_SEED = "toque_seed"
_MADE = pytest.StashKey["SimFactory"]()

toque_seeds = pytest.mark.toque_seeds


def pytest_addoption(parser: pytest.Parser) -> None:
    """Both options."""
    group = parser.getgroup("toque", "toque: simulations of workflows")
    group.addoption(
        "--toque-seeds",
        type=int,
        metavar="N",
        help="play each test marked toque_seeds under N seeds, instead of those it asks for",
    )
    group.addoption(
        "--toque-seed", type=int, metavar="SEED", help="play these tests under one seed only"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and check the options."""
    config.addinivalue_line(
        "markers", "toque_seeds(n): play the test under n seeds of mishaps (fixture toque_sim)"
    )
    seeds, seed = config.getoption("toque_seeds"), config.getoption(_SEED)
    if seeds is not None and not 0 < seeds <= TESTKIT_SEEDS_MAX:
        raise pytest.UsageError(f"--toque-seeds {seeds}: from 1 to {TESTKIT_SEEDS_MAX}, please")
    if seed is not None and seed < 0:
        raise pytest.UsageError(f"--toque-seed {seed}: a seed is 0 or more")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each seed."""
    mark = metafunc.definition.get_closest_marker(MARK)
    if mark is None:
        return
    name = metafunc.definition.nodeid
    if _FIXTURE not in metafunc.fixturenames:
        raise pytest.UsageError(
            f"{name} is marked {MARK} and takes no `{_FIXTURE}`. "
            f"Right: def {metafunc.function.__name__}({_FIXTURE}): ..."
        )
    wanted = mark.args[0] if len(mark.args) == 1 and not mark.kwargs else None
    if type(wanted) is not int or not 0 < wanted <= TESTKIT_SEEDS_MAX:
        raise pytest.UsageError(
            f"{name}: {MARK} takes how many seeds, from 1 to {TESTKIT_SEEDS_MAX}. "
            "Right: @toque_seeds(50)"
        )
    seed = metafunc.config.getoption(_SEED)
    count = metafunc.config.getoption("toque_seeds") or wanted
    seeds = range(count) if seed is None else [seed]
    metafunc.parametrize(_SEED, seeds, ids=[f"seed{one}" for one in seeds])


@pytest.fixture
def toque_seed() -> int | None:
    """The seed of a test marked `toque_seeds`; None without it."""
    return None


@pytest.fixture
def toque_sim(request: pytest.FixtureRequest, toque_seed: int | None) -> Iterator[SimFactory]:
    """Makes simulations: `with toque_sim([Order]) as sim: ...`; see `toque.testing`."""
    factory: SimFactory = import_module(f"{__package__}.factory").SimFactory(toque_seed)
    request.node.stash[_MADE] = factory
    try:
        yield factory
    finally:
        factory.close()


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test that no other plugin has run."""
    names = pyfuncitem._fixtureinfo.argnames
    if _FIXTURE not in names or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With a failure: what happened in the simulations, and how to play the seed again."""
    report = yield
    factory = item.stash.get(_MADE, None)
    if factory is not None and report.when == "call" and report.failed:
        told = [factory.told()] if factory.made else []
        if factory.seed is not None:
            again = f"{shlex.quote(item.nodeid)} --toque-seed {factory.seed}"
            told.append(f"again: pytest {again}")
        if told:
            report.sections.append(("toque simulation", "\n".join(told)))
    return report
