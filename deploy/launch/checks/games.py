"""Plays some games before a run, and tries the user's own code around them: prompts, scripted player, state key.

A live environment acts on the world, so its games are only opened, as its spec's own check says.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import numpy as np

from deploy.launch.checks.servers import Report
from deploy.launch.planning.task_sets import TaskSets, open_task_sets, views
from envservice.base import Environment, ParsedAction, outcome_of
from envservice.client.request_batching import SHARE
from envservice.registry import BUILT_IN, find_spec, find_teacher, make_template
from rollout.demonstrations import demonstrate
from services.amounts import rounded
from services.config.file import as_yaml, flatten
from services.config.tree import Config
from services.errors import EnvFault, UserError, described
from services.process.own_code import as_user_error
from services.process.threads import DaemonThread, in_loop
from services.records import Episode, Step, Ticket, choices_digest

PROBED_GAMES = 24
"""Least number of games that are opened to check the data, if there are so many. Every nth is opened, so it can be
nearly twice this number. Any other broken game drops its group at run time."""
PROBED_S = 60.0
"""Seconds after which no further game is begun, for games whose steps take seconds."""
TRIED_STEPS = 8
"""Most steps of a game that the scripted player and the state key are tried on."""
ENDING = ("env.recycle_hours", "env.recycle_gb", "autoscale.env")
"""Keys by which a run ends environment servers on purpose."""
ANSWERS = ("", "\u2603", "<action>", "<think>a thought</think><action>an action</action>")
"""Answers that each prompt template has to parse, because a model may write anything."""


def check_games(config: Config, report: Report) -> TaskSets:
    """Returns the run's task sets. Raises UserError for the first game that is broken, and for code of the user's own
    that fails on one. `report` takes warnings, a line for a game that takes long, and one if the time ends before all
    chosen games are tried."""
    task_sets = open_task_sets(config)
    check_ends(config, task_sets.environment)
    for view, environment, tasks in views(config, task_sets):
        if find_spec(view.env.name).threaded(view.env) or in_loop():
            # As a server plays them, or because no loop runs inside another, such as a notebook's.
            # The thread stays: a game's process may end with the thread that started it.
            DaemonThread("games").submit(_try_games, view, environment, tasks, report).result()
        else:
            _try_games(view, environment, tasks, report)
    return task_sets


def _try_games(config: Config, environment: Environment, train: tuple[str, ...], report: Report) -> None:
    """Tries one environment. `train`: its training tasks."""
    own = config.env.name not in BUILT_IN
    _play(config, environment, train[::max(1, len(train) // PROBED_GAMES)], report)
    if config.learner.task_sampling == "contrast":
        _check_several_types(config.env.name, environment, train, report)
    if own:
        _check_types(config.env.name, environment, train[0])
        _try_parser(config)
    if environment.replay == "live":
        return
    if own:
        _try_prompt(config, environment, train[0])
    if own and not config.env.urls:  # their names may stand for several servers
        _time_steps(config, environment, train[0], report)
    if own and config.sft.enabled and config.sft.file is None:
        _try_teacher(config, environment, train[0])
    if ":" in config.learner.credit.state_key and environment.replay == "pure":  # others ask a service
        _try_key(config, environment, train[0])
    if config.learner.credit.state_key == "environment" and not environment.open(train[0]).reset().state:
        raise UserError(f"learner.credit.state_key=environment, and {config.env.name} gives no state",
                        "choose another state key (ALFWorld: or set env.alfworld.exact_state=true)")


def check_ends(config: Config, environment: Environment) -> None:
    """Raises UserError if servers of a live environment would be ended on purpose. Their episodes would be lost."""
    chosen = flatten(config)
    for key in ENDING if environment.replay == "live" else ():
        if chosen[key] is not None:
            raise UserError(f"{key}={as_yaml(chosen[key])} ends environment servers, and nobody can rebuild the "
                            f"sessions of {config.env.name}, which is live", f"leave {key} out")


def _play(config: Config, environment: Environment, tasks: tuple[str, ...], report: Report) -> None:
    name, spec = config.env.name, find_spec(config.env.name)
    check = spec.check if spec.threaded(config.env) else partial(_check_in_loop, spec.check)
    fix = "unpack the game data again" if name in BUILT_IN else f"fix {name}"
    start = time.monotonic()
    for number, task in enumerate(tasks, 1):
        with as_user_error(f"game {task} is broken", fix), _reports_if_long(task, config.env.call_seconds, report):
            check(environment, task)
        if (seconds := time.monotonic() - start) > PROBED_S and number < len(tasks):
            report(f"checked {number} of {len(tasks)} games in {seconds:.0f} s; the others are not played before "
                   "the run")
            return


def _check_in_loop(check: Callable[[Environment, str], None], environment: Environment, task: str) -> None:
    """Checks a game in a running event loop, where a server plays it. Raises UserError for a game that can be played
    only outside of a loop, and otherwise as `check` does."""
    async def checking() -> None:
        check(environment, task)

    loop = asyncio.new_event_loop()  # asyncio.run would keep the first Ctrl-C from a game that hangs
    try:
        loop.run_until_complete(checking())
    except (UserError, EnvFault):
        raise
    except Exception as error:
        check(environment, task)
        raise UserError(f"game {task} cannot be played in the event loop of a server ({described(error)})",
                        "say threaded=True in its spec, so that the server plays it in a thread") from error
    finally:
        loop.close()


@contextmanager
def _reports_if_long(task: str, seconds: float, report: Report) -> Iterator[None]:
    """Reports that the block takes longer than `seconds`: a game may hang, and nothing can end it from within its own
    process."""
    line = f"game {task} has not ended after {seconds:g} s (env.call_seconds), and the check waits; Ctrl-C ends it"
    timer = threading.Timer(seconds, report, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _check_types(name: str, environment: Environment, task: str) -> None:
    """Raises UserError unless `task_type` and `task_digest` return texts for a task."""
    for part in ("task_type", "task_digest"):
        with as_user_error(f"{part} of {name} failed on {task}", f"fix {name}"):
            value: object = getattr(environment, part)(task)
        if not isinstance(value, str):
            raise UserError(f"{part} of {name} returned {value!r:.60} for {task}", "return a text")


def _check_several_types(name: str, environment: Environment, train: tuple[str, ...],
                         report: Report) -> None:
    """Reads the type of each training task, as the run will. `report` takes a line if all have the same one."""
    with as_user_error(f"task_type of {name} failed", f"fix {name}"):
        types = set(map(environment.task_type, train))
    if len(types) == 1:
        report(f"warning: learner.task_sampling=contrast does nothing in {name}, whose training games are all of the "
             f"type {types.pop()!r:.60}")


def _try_prompt(config: Config, environment: Environment, task: str) -> None:
    """Raises UserError unless the prompt template makes a text of the game's first outcome."""
    name, template = f"the prompt {config.env.prompt!r} of {config.env.name}", make_template(config.env)
    with as_user_error(f"{name} failed to render the beginning of {task}", f"fix {config.env.name}"):
        first = outcome_of(environment.open(task).reset(), "reset")
        text: object = template.render(first, (), first)
    if not isinstance(text, str):
        raise UserError(f"{name} renders {text!r:.60}", "return a text from `render`")


def _time_steps(config: Config, environment: Environment, task: str, report: Report) -> None:
    """Reports steps that are so slow that the games of a server, which take turns, may wait longer than an answer may
    take. The first step may load something, so the faster of two counts."""
    name, rollout, answer_s = config.env.name, config.rollout, config.env.call_seconds * SHARE
    games = math.ceil(rollout.workers * rollout.slots / config.env.servers)
    step_s = math.inf
    broken = as_user_error(f"game {task} is broken", f"fix {name}")
    with broken, _reports_if_long(task, config.env.call_seconds, report):
        session = environment.open(task)
        now = outcome_of(session.reset(), "reset")
        for _ in range(2):
            if now.done or games * step_s <= answer_s:
                break
            start = time.monotonic()
            now = outcome_of(session.step(next(iter(now.admissible_actions), "0")), "step")
            step_s = min(step_s, time.monotonic() - start)
    if answer_s < games * step_s < math.inf:
        inline = not find_spec(name).threaded(config.env)
        report(f"a step of {name} takes {rounded(step_s, 2)} s, so the {games} games of a server wait for "
             f"{rounded(games * step_s)} s, and an answer has {answer_s:g} s; give more env.servers, fewer "
             "rollout.slots or a larger env.call_seconds" + inline * ", and say threaded=True in its spec: without it "
             "a server answers nothing else during a step")


def _try_parser(config: Config) -> None:
    """Raises UserError unless the prompt template parses each of ANSWERS."""
    name, template = f"the prompt {config.env.prompt!r} of {config.env.name}", make_template(config.env)
    for answer in ANSWERS:
        with as_user_error(f"{name} failed to parse {answer!r}",
                           "read any text, and say in `valid` whether it is well formed"):
            parsed = cast("Any", template.parse(answer))
            if not (isinstance(parsed, ParsedAction) and isinstance(cast("Any", parsed.action), str)):
                raise UserError(f"{name} parses an answer as {parsed!r:.60}",
                                "return an envservice.base.ParsedAction, whose action is a text, from `parse`")


def _try_teacher(config: Config, environment: Environment, task: str) -> None:
    """Raises UserError if the scripted player fails on a game, or writes answers that the template calls invalid."""
    name, template = config.env.name, make_template(config.env)
    with as_user_error(f"the teacher of {name} failed on {task}", f"fix {name}"):
        steps = [step for noise in {0.0, float(config.sft.noise > 0)} for step in demonstrate(
            environment, task, teacher=find_teacher(config.env), template=template, seed=config.seed,
            sft=config.sft.model_copy(update={"noise": noise}),
            max_steps=min(config.env.max_steps, TRIED_STEPS)).steps]
        for step in steps:
            if not template.parse(step.response_text).valid:
                raise UserError(f"the teacher of {name} answers {step.response_text!r:.60}, which the prompt "
                                f"{config.env.prompt!r} does not take for well formed",
                                "write answers by gagpo.environments.answer, or in the template's own form")


def _try_key(config: Config, environment: Environment, task: str) -> None:
    """Raises UserError if a state key of the user's own fails on a game of this environment, or returns other keys for
    the same episodes: a learner step that is repeated after a restart would give other credit."""
    from learner.credit.registry import options_of
    from learner.credit.state_keys import keys_of_group

    name, options = config.learner.credit.state_key, options_of(config.learner.credit)
    played = _played(environment, task)
    with as_user_error(f"the state key {name} failed on {task}", f"fix {name.partition(':')[0]}"):
        once, again = (keys_of_group([played, played], options) for _ in range(2))
    if once != again:
        raise UserError(f"the state key {name} returned other keys for the same episodes",
                        "keep nothing between calls, and seed what is random")


def _played(environment: Environment, task: str) -> Episode:
    """Returns an episode of a game's first steps, each by the first admissible action, with one token as a stand-in for
    each prompt and answer."""
    session, steps = environment.open(task), list[Step]()
    now, tokens = outcome_of(session.reset(), "reset"), np.zeros(1, np.int32)
    while not now.done and len(steps) < TRIED_STEPS:
        action = next(iter(now.admissible_actions), "")
        after = outcome_of(session.step(action), "step")
        steps.append(Step(
            observation=now.observation, prompt_ids=tokens, response_ids=tokens, logprobs=np.zeros(1, np.float32),
            spans=[], action=action, valid=True, admissible=True, reward=float(after.reward),
            choices=choices_digest(now.admissible_actions), state=now.state, unchanged=after.unchanged))
        now = after
    ticket = Ticket(group="train/00000000", k=0, size=1, task=task, seed=0, kind="train", temperature=1.0,
                    max_steps=TRIED_STEPS)
    return Episode(ticket=ticket, steps=steps, won=now.won, end=now.ended("turns"), worker="", attempt=1, seconds=0.0,
                   engine=environment.engine, final_observation=now.observation, final_state=now.state,
                   final_choices=choices_digest(now.admissible_actions))
