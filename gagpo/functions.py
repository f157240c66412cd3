"""The functions of the library. Each imports what it needs when it is called."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

from services.errors import UserError

if TYPE_CHECKING:
    from deploy.runs.results import RunResults
    from learner.credit.types import Credit


@overload
def credit(groups: Mapping[str, Any], **options: Any) -> Credit: ...


@overload
def credit(groups: Iterable[Mapping[str, Any]], **options: Any) -> list[Credit]: ...


def credit(groups: Mapping[str, Any] | Iterable[Mapping[str, Any]], **options: Any) -> Credit | list[Credit]:
    """The credit of each step: which one earned the reward.

        group = {"episodes": [{"steps": [{"state": "hall", "action": "north", "reward": 0.0}, ...]}, ...]}
        gagpo.credit(group).advantages[episode][step]

    `groups`: one group, several episodes of one task, gives one Credit; several groups give a list, and count as those
    of one learner step. docs/tasks/logged-episodes.md has the form. `options`: keys of `learner.credit`, such as
    `estimator="gigpo"`, `gamma=0.9` or `state_key="normalized"`; one that does nothing is warned of. Pure. Raises
    UserError that names the wrong field.
    """
    from learner.credit.registry import unread
    from learner.logged_groups.form import credit_of, credit_options, parse_group

    chosen = credit_options(options)
    for name, why in unread(chosen, options).items():
        warnings.warn(f"{name} does nothing {why}", stacklevel=2)
    if isinstance(groups, str | bytes) or not isinstance(groups, Iterable):
        raise UserError(f"groups cannot be {groups!r:.60}", "give a group, or a list of groups")
    if isinstance(groups, Mapping):
        return credit_of([parse_group(cast("Mapping[str, Any]", groups))], chosen)[0]
    return credit_of([parse_group(group, f"group {number}: ") for number, group in enumerate(groups, 1)], chosen)


def train(config: Path | str, overrides: Mapping[str, object] | None = None, *, resume: bool = False) -> RunResults:
    """Trains an agent, as `gagpo train` does, and returns what the run left behind.

    `config`: a YAML file, or the name of a shipped config such as "alfworld-tiny". `overrides`: values by dotted key,
    such as {"name": "mine", "learner.lr": 1e-6}. `resume`: continue the run of that name, or start it. Progress goes
    to stderr. Raises UserError for a user's mistake, before anything starts, and Fault for a failure.
    """
    from deploy.runs.configs import load_config
    from deploy.runs.hub import with_local_model
    from deploy.runs.results import RunResults
    from deploy.training.start import start

    chosen = with_local_model(load_config(config, _words(overrides)))
    start(chosen, resume=resume, quiet=True)
    return RunResults(chosen.run_dir)


def evaluate(model: Path | str, overrides: Mapping[str, object] | None = None, *, config: Path | str | None = None,
             which: str | None = None, split: str | None = None) -> dict[str, Any]:
    """Plays each task of a set once, as `gagpo eval` does. Returns a row in the form of evaluations.jsonl: success_rate
    with success_low and success_high (95%, over tasks), success_by_type, success_by_task and more.

    `model`: a Hugging Face folder or a run's folder. `config`: how to play; by default the one beside the model.
    `which`: latest, best or a step, for a run. `split`: by default the held-out tasks. `overrides`: values by dotted
    key, such as {"eval.panel": 64}. Raises UserError as `gagpo eval` does. The row is also kept, in RUN/eval.jsonl or
    MODEL.eval.jsonl.
    """
    from deploy.runs.policies import resolve, run_path
    from deploy.training.evaluation import evaluate as play
    from deploy.training.evaluation import results_file

    path = run_path(str(model))
    chosen, policy = resolve(path, None if config is None else str(config), {}, _words(overrides), which=which)
    return play(chosen, policy, split=split, file=results_file(path)).summary


def open_run(path: Path | str) -> RunResults:
    """Opens a run: its metrics, evaluations and episodes as Arrow tables. `path`: the folder of a run, or
    its name in ./runs. It may still train. Raises UserError if there is no such run.
    """
    from deploy.runs.policies import run_path
    from deploy.runs.results import RunResults

    return RunResults(run_path(str(path)))


def _words(overrides: Mapping[str, object] | None) -> list[str]:
    """Returns overrides as the command line has them. JSON is YAML. Raises UserError for a number that is not finite,
    which YAML would read as a text."""
    words: list[str] = []
    for key, value in (overrides or {}).items():
        try:
            words.append(f"{key}={json.dumps(value, default=str, ensure_ascii=False, allow_nan=False)}")
        except ValueError:
            raise UserError(f"{key} cannot be {value!r}", "give a finite number, or leave the key out") from None
    return words
