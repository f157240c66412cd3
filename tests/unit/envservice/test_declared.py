"""text_spec and dataset_spec refuse wrong arguments where they are written, and name the value in one line."""

from collections.abc import Callable

import pytest

from envservice.adapters.dataset import dataset_spec
from envservice.adapters.gymnasium import text_spec
from envservice.spec import EnvironmentSpec
from services.errors import UserError

DECLARE = pytest.mark.parametrize("declare", [text_spec, dataset_spec])


class Game:
    pass


def refusal(declare: Callable[..., object], made: object = Game, **given: object) -> str:
    with pytest.raises(UserError) as error:
        declare(made, **({"name": "dice"} | given))
    return str(error.value)


def test_a_game_in_place_of_its_class_is_told_before_it_is_played():
    said = refusal(text_spec, Game())
    assert said.startswith("the game dice is <")
    assert said.endswith(", which makes no games; give its class, or a function")


@DECLARE
@pytest.mark.parametrize("name", ["", "a/b", "two words", "-dice", "dice\n", 7, None])
def test_a_name_that_is_no_word_is_refused(declare: Callable[..., object], name: object):
    """Ids of tasks begin with the name and a slash."""
    assert refusal(declare, name=name) == (
        f"name={name!r} names no environment; use a word of letters, digits, dots, dashes and underscores, such as "
        "my-game")


@DECLARE
@pytest.mark.parametrize("steps", ["30", 2.5, True, None])
def test_max_steps_of_another_type_is_refused(declare: Callable[..., object], steps: object):
    assert refusal(declare, max_steps=steps) == (
        f"the environment dice has max_steps={steps!r}; give the most steps of an episode as a whole number")


@pytest.mark.parametrize("sizes", [
    (1,), 5, (10, 5, -1), (10, 5, 0), (0, 5, 5), (10, 5, 1.5), (10, True, 5), (10**8, 1, 1)])
def test_sizes_of_another_form_are_refused(sizes: object):
    assert refusal(text_spec, sizes=sizes) == (
        f"the game dice has sizes={sizes}; give the tasks of train, valid and heldout, at least one of each and "
        "100,000,000 in all, as (1000, 100, 300)")


@DECLARE
@pytest.mark.parametrize("name", ["my-game_2.0", "Würfel"])
def test_a_word_and_a_whole_number_will_do(declare: Callable[..., EnvironmentSpec], name: str):
    assert declare(Game, name=name, max_steps=30).max_steps == 30
