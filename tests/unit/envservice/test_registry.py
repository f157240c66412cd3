"""Environments by name. Those of a user refuse wrong arguments where they are written."""

from collections.abc import Callable
from pathlib import Path

import pytest
from toy_environment import SPEC, ToyEnvironment

from envservice import registry
from envservice.adapters.dataset import dataset_spec
from envservice.adapters.gymnasium import text_spec
from envservice.spec import LONGEST, EnvironmentSpec
from services.config.file import default_config
from services.config.tree import EnvSection
from services.errors import UserError

TOY = EnvSection(name="toy_environment:SPEC", prompt="compact", max_steps=10)


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_each_built_in_environment_has_a_whole_spec(name: str):
    spec = registry.find_spec(name)
    assert "\n" not in spec.describe(EnvSection(name=name))
    for prompt, make in spec.prompts.items():
        assert make(2).name == prompt
    assert all("\n" not in finding.detail for finding in spec.findings())


def test_one_of_ones_own_is_found_by_module_and_attribute():
    assert registry.find_spec(TOY.name) is SPEC
    assert registry.open_environment(TOY).name == "toy"
    assert registry.make_template(TOY).name == "compact"
    registry.check_settings(TOY)


@pytest.mark.parametrize(("name", "what"), [
    ("alfwrld", "there is no environment 'alfwrld'; set env.name to one of alfworld"),
    ("toy_environment:", "there is no environment 'toy_environment:'"),
    (":SPEC", "there is no environment ':SPEC'"),
    ("../toys:SPEC", "there is no environment '../toys:SPEC'"),
    ("nowhere.at_all:SPEC", "install its package, or put its folder on PYTHONPATH"),
    ("toy_environment:FAMILIES", "toy_environment has no FAMILIES"),
    ("toy_environment:ToyEnvironment", "toy_environment:ToyEnvironment is of type type, not an EnvironmentSpec"),
])
def test_a_name_of_nothing_is_one_line(name: str, what: str):
    with pytest.raises(UserError) as error:
        registry.find_spec(name)
    assert what in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_dependency_of_ones_own_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "needy_environment.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="; install a_package_that_nobody_has"):
        registry.find_spec("needy_environment:SPEC")


@pytest.mark.parametrize(("changed", "what"), [
    ({"prompt": "fancy"}, "has no prompt 'fancy'; set env.prompt to one of full, compact"),
    ({"max_steps": 13}, "env.max_steps is 13, but an episode of toy_environment:SPEC has at most 12 steps"),
])
def test_settings_that_an_environment_does_not_have_are_refused(changed: dict[str, object], what: str):
    with pytest.raises(UserError) as error:
        registry.check_settings(TOY.model_copy(update=changed))
    assert what in str(error.value)


@pytest.mark.parametrize("steps", ["0", "-1", "1000000000", "many", "1.5", ".inf", "[]", "null"])
@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_an_absurd_number_of_steps_is_refused_for_every_environment(name: str, steps: str):
    with pytest.raises(UserError, match=r"^env\.max_steps"):
        registry.check_settings(default_config([f"env.name={name}", f"env.max_steps={steps}"]).env)


def test_a_task_names_its_environment_where_that_comes_with_the_package():
    assert registry.open_holding(EnvSection(), "alfworld-gen/valid/pick-0000").name == "alfworld-gen"
    assert registry.open_holding(TOY, "toy/train/00").name == "toy"
    with pytest.raises(KeyError):
        registry.open_holding(EnvSection(), "toy/train/00")


def test_the_settings_follow_the_environment_of_a_task_that_comes_with_the_package():
    assert registry.env_of(EnvSection(max_steps=7), "search-gen/train/0") == EnvSection(name="search", max_steps=7)
    assert registry.env_of(TOY, "alfworld-gen/valid/pick-0000") is TOY


def test_variants_stand_in_for_what_is_published():
    names = ("alfworld-gen", "alfworld", "my-own", "toy")
    assert [registry.stands_in_for(name) for name in names] == ["alfworld", None, None, None]


def test_an_episode_is_not_longer_than_the_api_can_carry():
    with pytest.raises(ValueError, match=f"1 to {LONGEST} steps"):
        EnvironmentSpec(open=lambda _: ToyEnvironment(), prompts={}, describe=lambda _: "", max_steps=LONGEST + 1)


def test_an_environment_without_demonstrations_has_no_cold_start():
    with pytest.raises(UserError, match="has no demonstrations for a cold start"):
        registry.find_teacher(TOY)

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
        "at most 100,000,000 in all, as (1000, 100, 300)")


@DECLARE
@pytest.mark.parametrize("name", ["my-game_2.0", "Würfel"])
def test_a_word_and_a_whole_number_will_do(declare: Callable[..., EnvironmentSpec], name: str):
    assert declare(Game, name=name, max_steps=30).max_steps == 30
