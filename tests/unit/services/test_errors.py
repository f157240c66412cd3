"""Errors keep what they say across process borders."""

import pickle

import httpx
import pytest

from services.errors import EnvFault, GagpoError, LeaseLost, UserError, described, first_line, in_short

ERRORS = [UserError("no model", "give one"), EnvFault("gone"), LeaseLost("by another")]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_error_survives_pickling(error: GagpoError):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_an_unforeseen_exception_is_one_line_with_its_place():
    try:
        int("seven\nand eight")
    except ValueError as error:
        said = described(error)
    assert said.startswith("ValueError: invalid literal for int() with base 10: 'seven\\nand eight' (in ")
    assert described(KeyError()) == "KeyError: no text"


def test_a_group_of_exceptions_is_told_by_its_first():
    """As an agent's task group raises it. Its own text is `unhandled errors in a TaskGroup (1 sub-exception)`."""
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("the cause")]), KeyError("beside")])
    assert described(group) == "ValueError: the cause"


@pytest.mark.parametrize(("error", "said"), [
    (ValueError("bad\nindeed"), "ValueError: bad"), (ValueError("\n bad"), "ValueError: bad"),
    (KeyError(), "KeyError")])
def test_in_short_an_exception_is_its_type_and_its_first_line(error, said):
    assert in_short(error) == said
    assert first_line(error) == said.removeprefix("ValueError: ")


def test_an_exception_of_an_installed_package_is_placed_where_that_was_called():
    with pytest.raises(httpx.InvalidURL) as raised:
        httpx.URL("http://host:port")
    assert "(in test_an_exception_of_an_installed_package_is_placed_where_that_was_called, test_errors.py:" in \
        described(raised.value)
