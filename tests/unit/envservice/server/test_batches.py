"""A request's elements are checked in a time that its size bounds, whatever they hold."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from pydantic import BeforeValidator, TypeAdapter, model_validator

from envservice.server.batches import Verb
from envservice.wire import MAX_BATCH, Problem, WireModel

validated: list[Any] = []
"""Values and elements that came to pydantic."""


def seen(value: Any) -> Any:
    validated.append(value)
    return value


class Inner(WireModel):
    names: list[Annotated[str, BeforeValidator(seen)]]


class Outer(WireModel):
    info: dict[str, str | int]
    inner: list[Inner] | None = None

    @model_validator(mode="before")
    @classmethod
    def _seen(cls, value: Any) -> Any:
        return seen(value)


@pytest.fixture
def verb() -> Verb[Outer]:
    validated.clear()
    return Verb("verb", Outer, TypeAdapter(list[Outer]), lambda *_: (b"", False))


@pytest.mark.parametrize(("element", "field"), [
    ({"info": {}, "inner": [{"names": [None] * 1000}]}, "inner.0.names.0"),
    ({"info": {str(each): None for each in range(1000)}}, "info"),
    ({"info": {}, **{f"x{each}": 0 for each in range(1000)}}, "x0"),
    ({"info": {}, "inner": [{"names": [], **{f"x{each}": 0 for each in range(1000)}}]}, "inner.0.x0"),
    ({}, "info"), (None, None)])
def test_wrong_values_are_refused_at_the_first_one(verb: Verb[Outer], element: Any, field: str | None):
    (problem,) = verb.decode(msgspec.json.encode([element]))
    assert isinstance(problem, Problem)
    assert (problem.kind, problem.field) == ("malformed", field)
    assert validated == []


def test_a_list_of_too_many_elements_is_refused_before_any_is_validated(verb: Verb[Outer]):
    with pytest.raises(Problem, match=f"1000 elements; at most {MAX_BATCH}"):
        verb.decode(msgspec.json.encode([None] * 1000))
    assert validated == []


def test_a_valid_element_beside_an_invalid_one_is_returned(verb: Verb[Outer]):
    valid, invalid = verb.decode(b'[{"info":{"a":1},"inner":[{"names":["b"]}]},{"info":[]}]')
    assert valid == Outer(info={"a": 1}, inner=[Inner(names=["b"])])
    assert isinstance(invalid, Problem)
