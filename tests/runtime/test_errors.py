"""Errors: picklable, the same class over the wire, codes and numbers that stay apart."""

from __future__ import annotations

import importlib
import pickle
import pkgutil

import pytest

from toque.runtime import errors
from toque.runtime.codec import pack, unpack

for folder in ("actors", "api", "engines", "gatekeeper", "souschef"):
    package = importlib.import_module(f"toque.{folder}")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in ("keeper", "__main__"):  # a program
            importlib.import_module(f"toque.{folder}.{module.name}")


def all_errors() -> list[type[errors.ToqueError]]:
    found, todo = [], [errors.ToqueError]
    while todo:
        cls = todo.pop()
        found.append(cls)
        todo += cls.__subclasses__()
    return [cls for cls in found if cls.__module__.startswith("toque.") and "code" in vars(cls)]


@pytest.mark.parametrize("cls", all_errors(), ids=lambda cls: cls.code)
def test_an_error_survives_pickle_and_the_wire(cls):
    error = cls("what was wrong", {"field": "x", "n": 1})
    for twin in (
        pickle.loads(pickle.dumps(error)),
        errors.from_wire(unpack(pack(errors.to_wire(error)), errors.WireError)),
    ):
        assert type(twin) is cls
        assert str(twin) == "what was wrong"
        assert twin.data == {"field": "x", "n": 1}


def test_codes_and_numbers_are_not_used_twice():
    # by name: some classes are made for an occasion, as twins that are also a builtin error
    taken = {cls.code: cls.__qualname__ for cls in all_errors()}
    assert [cls for cls in all_errors() if taken[cls.code] != cls.__qualname__] == []
    numbered = [cls for cls in all_errors() if "number" in vars(cls)]
    takers = {cls.number: cls.__qualname__ for cls in numbered}
    assert [cls for cls in numbered if takers[cls.number] != cls.__qualname__] == []


@pytest.mark.parametrize("cls", all_errors(), ids=lambda cls: cls.code)
def test_the_callers_mistakes_are_4xx_and_weather_is_5xx(cls):
    if issubclass(cls, errors.CallerError):
        assert 400 <= cls.status < 500
        # what is over a limit may succeed later; any other mistake stays one
        assert not cls.retryable or cls.overloaded
        # official clients repeat 408, 409, 429: a mistake must not look like one
        assert cls.status not in (409, 429) or cls.overloaded
    if issubclass(cls, errors.SystemFault):
        assert cls.status >= 500 or cls.status in (408, 429)


def test_what_toque_did_not_raise_keeps_only_name_and_text():
    error = errors.from_wire(errors.to_wire(KeyError("x")))
    assert type(error) is errors.ToqueError
    assert str(error) == "KeyError: 'x'"
    assert error.remote


def test_an_unknown_code_of_a_newer_release_is_still_an_error():
    assert errors.from_wire(("not.known", "hm", {})).message == "hm"


def test_a_code_can_not_be_taken_twice():
    with pytest.raises(TypeError, match="taken"):
        type("Other", (errors.CallerError,), {"code": errors.InvalidId.code})


def test_control_flow_passes_an_authors_except_exception():
    assert not issubclass(errors.ControlFlow, Exception)
