"""Several environments as one."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest

from envservice.base import Outcome
from envservice.checks import check_apart, check_environment
from envservice.mixture import Mixture
from envservice.registry import (
    env_of,
    find_teacher,
    is_threaded,
    largest_session,
    make_template,
    open_environment,
    open_holding,
)
from envservice.server.sessions import SessionStore
from envservice.wire import StepRequest, StepResult
from services.config.env import EnvSection, SearchSection
from services.errors import UserError

ENV = EnvSection(name="guess", more=(EnvSection(name="search"),))


@pytest.fixture(scope="module")
def mixture() -> Mixture:
    made = open_environment(ENV)
    assert isinstance(made, Mixture)
    return made


def test_it_is_an_environment_with_the_tasks_of_all(mixture: Mixture):
    check_environment(mixture, "mixture")
    train, validation, heldout = mixture.training_splits()
    assert (mixture.name, mixture.splits()) == ("guess+search-gen", [train, validation, heldout])
    splits = {split: mixture.tasks(split) for split in mixture.splits()}
    check_apart(mixture, splits)
    assert splits[train] == sorted(splits[train])
    assert {name: len(tasks) for name, tasks in mixture.by_part(splits[train]).items()} == {
        "guess": 1000, "search-gen": len(splits[train]) - 1000}
    assert {task.partition("/")[0] for task in splits[heldout]} == {"guess", "search-gen"}


def test_types_and_digests_are_those_of_the_parts(mixture: Mixture):
    task = mixture.by_part(mixture.tasks("train"))["search-gen"][0]
    alone = open_environment(EnvSection(name="search"))
    assert mixture.task_type(task) == f"search-gen/{alone.task_type(task)}"
    assert mixture.task_digest(task) == alone.task_digest(task)
    assert open_environment(ENV).digest("train") == mixture.digest("train")
    other = open_environment(EnvSection(name="guess", more=(EnvSection(name="webshop"),)))
    assert other.digest(other.training_splits()[0]) != mixture.digest("train")
    with pytest.raises(KeyError):
        mixture.open("webshop/train/1")
    with pytest.raises(UserError, match=r"^guess\+search-gen has no split 'valid_seen'; choose one of train, "):
        mixture.tasks("valid_seen")


def test_a_version_has_those_of_the_parts_or_a_digest_of_long_ones(mixture: Mixture):
    """A step carries it, with at most 200 characters."""
    class Long:
        name, engine, version, replay = "long", "e", "1" * 150, "pure"

        def training_splits(self) -> tuple[str, str, str]:
            return "train", "valid", "heldout"

    guess = mixture.parts["guess"]
    assert mixture.version.startswith(f"{guess.engine} {guess.version}, ")
    assert len(Mixture([guess, Long()]).version) == 16  # pyright: ignore[reportArgumentType]


def test_a_lost_session_is_rebuilt_whichever_environment_it_is_of(mixture: Mixture):
    """Search is rebuilt from its outcomes and the guessing game by its actions, on a server of both."""
    for part, actions in (("guess", ["1", "2"]), ("search-gen", ["<search>river</search>", "<search>town</search>"])):
        task = mixture.by_part(mixture.tasks("train"))[part][0]
        first, second = SessionStore(mixture), SessionStore(mixture)
        began = first.reset("e", task)
        taken = first.step(StepRequest(episode_id="e", task=task, actions=[], action=actions[0], digest=began.digest))
        request = StepRequest(episode_id="e", task=task, actions=actions[:1], action=actions[1], digest=taken.digest,
                              transcript=[StepResult.model_validate_json(taken.body)])
        rebuilt = second.step(request)
        assert rebuilt.rebuilt
        assert rebuilt.body == first.step(request).body


def test_a_pure_game_that_goes_another_way_when_it_is_rebuilt_is_a_fault(mixture: Mixture):
    session = mixture.open(mixture.by_part(mixture.tasks("train"))["guess"][0])
    first = session.reset()
    with pytest.raises(Exception, match="the action '1' led to another outcome than it had before"):
        session.recall("1", replace(first, observation="Something else."))  # pyright: ignore[reportAttributeAccessIssue]


def test_a_live_environment_and_two_of_one_name_are_refused():
    guess = open_environment(EnvSection(name="guess"))
    with pytest.raises(UserError, match=r"^two environments of the list have the name guess; "):
        Mixture([open_environment(EnvSection(name="search")), guess, guess])

    class Live:
        name, replay = "mail", "live"

    with pytest.raises(UserError, match=r"^mail is live, which a list of environments cannot hold yet; "):
        Mixture([guess, Live()])  # pyright: ignore[reportArgumentType]


def test_ids_that_do_not_begin_with_their_environments_name_are_refused():
    class Own:
        name, engine, version, replay = "mine", "e", "1", "pure"

        def training_splits(self) -> tuple[str, str, str]:
            return "train", "valid", "heldout"

        def tasks(self, split: str) -> list[str]:
            return [f"{split}/1"]

    mixture = Mixture([open_environment(EnvSection(name="guess")), Own()])  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match=r"^the environment mine has the task 'train/1', and .*; let its ids begin with "
                                        "mine/$"):
        mixture.tasks("train")


def test_parts_that_hold_something_are_opened_and_closed_with_it():
    events: list[str] = []

    class Holding(AbstractContextManager["Holding"]):
        name, engine, version, replay = "held", "e", "1", "pure"

        def training_splits(self) -> tuple[str, str, str]:
            return "train", "valid", "heldout"

        def __enter__(self) -> Holding:
            events.append("open")
            return self

        def __exit__(self, *_: object) -> None:
            events.append("closed")

    with Mixture([Holding()]):  # pyright: ignore[reportArgumentType]
        assert events == ["open"]
    assert events == ["open", "closed"]


def test_the_registry_finds_the_settings_of_a_task_and_refuses_what_needs_one_environment():
    assert env_of(ENV, "search-gen/train/q").name == "search"
    with pytest.raises(UserError, match=r"^the task 'webshop/a/1' is of none of the environments in the list; choose "
                                        "one of guess, search$"):
        env_of(ENV, "webshop/a/1")
    assert open_holding(ENV, "guess/train/1").name == "guess"
    for ask in (make_template, find_teacher):
        with pytest.raises(UserError, match=re.escape(", and the config has several environments: guess, search; ")):
            ask(ENV)


def test_servers_are_made_for_the_most_demanding_environment():
    assert (largest_session(ENV), is_threaded(ENV)) == (0, False)
    remote = EnvSection(name="search", search=SearchSection(url=("http://127.0.0.1:1/retrieve",)))
    more = EnvSection(name="guess", more=(remote, EnvSection(name="scienceworld")))
    assert is_threaded(more)
    assert largest_session(more) > 0


def test_its_outcomes_are_those_of_the_part(mixture: Mixture):
    task = mixture.by_part(mixture.tasks("train"))["guess"][0]
    theirs = open_environment(EnvSection(name="guess")).open(task)
    outcome: Outcome = mixture.open(task).reset()
    assert outcome == theirs.reset()
