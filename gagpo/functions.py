"""The functions of the library. Each imports what it needs when it is called."""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

from gagpo.installation import check
from services.errors import UserError
from services.process.packages import naming_extras

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
    UserError that names the wrong field or option.
    """
    from learner.credit.registry import unread
    from learner.logged_groups.form import credit_of, credit_options, idle_options, parse_group, quality_warnings

    chosen = credit_options(options)
    if isinstance(groups, str | bytes) or not isinstance(groups, Iterable):
        raise UserError(f"groups cannot be {groups!r:.60}", "give a group, or a list of groups")
    one = isinstance(groups, Mapping)
    read = [parse_group(cast("Mapping[str, Any]", groups))] if one else [
        parse_group(group, f"group {number}: ") for number, group in enumerate(groups, 1)]
    for name, why in {**idle_options(read, chosen), **unread(chosen, options)}.items():
        warnings.warn(f"{name} does nothing {why}", stacklevel=2)
    credits = credit_of(read, chosen)
    for text in quality_warnings(read, credits, chosen):
        warnings.warn(text, stacklevel=2)
    return credits[0] if one else credits


def train(config: Path | str, overrides: Mapping[str, object] | None = None, *, resume: bool = False) -> RunResults:
    """Trains an agent, as `gagpo train` does, and returns what the run left behind.

    `config`: a YAML file, or the name of a shipped config such as "alfworld-tiny". `overrides`: values by dotted key,
    such as {"name": "mine", "learner.lr": 1e-6}. `resume`: continue the run of that name, or start it. Progress goes
    to stderr. Raises UserError for a user's mistake, which is nearly always found before anything starts, and Fault
    for a failure. Call it from the main thread.
    """
    check()
    _in_main_thread("gagpo.train", "gagpo train")
    _path("config", config)
    with naming_extras():
        from deploy.runs.configs import load_config
        from deploy.runs.model_sources import with_local_model
        from deploy.runs.results import RunResults
        from deploy.training.start import start

        chosen = with_local_model(load_config(config, _words(overrides)))
        start(chosen, resume=resume, quiet=True)
        return RunResults(chosen.run_dir)


def evaluate(model: Path | str, overrides: Mapping[str, object] | None = None, *, config: Path | str | None = None,
             which: str | int | None = None, split: str | None = None) -> dict[str, Any]:
    """Plays each task of a set once, as `gagpo eval` does. Returns a row in the form of evaluations.jsonl: success_rate
    with success_low and success_high (95%, over tasks), success_by_type, success_by_task and more.

    `model`: a Hugging Face folder or a run's folder. `config`: how to play; by default the config in that folder, or
    next to it.
    `which`: latest, best or a step, for a run. `split`: by default the held-out tasks. `overrides`: values by dotted
    key, such as {"eval.panel": 64}. Raises UserError as `gagpo eval` does. The row is also kept, in RUN/eval.jsonl or
    MODEL.eval.jsonl. Call it from the main thread.
    """
    check()
    _in_main_thread("gagpo.evaluate", "gagpo eval")
    _path("model", model)
    with naming_extras():
        from deploy.runs.policies import resolve, run_path
        from deploy.training.evaluation import evaluate as play
        from deploy.training.evaluation import results_file

        path = run_path(str(model))
        chosen, policy = resolve(path, None if config is None else str(config), {}, _words(overrides),
                                 which=None if which is None else str(which))
        return play(chosen, policy, split=split, file=results_file(path)).summary


def open_run(path: Path | str) -> RunResults:
    """Opens a run: its metrics, evaluations and episodes as Arrow tables. `path`: the folder of a run, or
    its name in ./runs. It may still train. Raises UserError if there is no such run.
    """
    _path("path", path)
    from deploy.runs.policies import run_path
    from deploy.runs.results import RunResults

    with naming_extras():
        import pyarrow  # noqa: F401  # pyright: ignore[reportUnusedImport]  # its tables are all that a run is read as

    return RunResults(run_path(str(path)))


def _in_main_thread(name: str, command: str) -> None:
    """Raises UserError elsewhere: Python sets handlers of signals in the main thread alone, and Ray's start needs them.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UserError(f"{name} was called outside the main thread",
                        f"call it from the main thread, or start a process with `{command}`")


def _path(name: str, value: object) -> None:
    if not isinstance(value, str | os.PathLike):
        raise UserError(f"{name} cannot be {value!r:.60}", "give a path or a name")


def _words(overrides: Mapping[str, object] | None) -> list[str]:
    """Returns overrides as the command line has them. JSON is YAML. Raises UserError for what has no form there, such
    as a number that is not finite, which YAML would read as a text."""
    if not isinstance(overrides, Mapping | None):
        raise UserError(f"overrides cannot be {overrides!r:.60}", 'give values by dotted key, such as {"steps": 20}')
    words: list[str] = []
    for key, value in (overrides or {}).items():
        try:
            words.append(f"{key}={json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False)}")
        except (ValueError, TypeError, RuntimeError):  # also for lists that hold themselves, and tensors
            fix = "a finite number" if isinstance(value, float) else "a text, a number, a list or a mapping"
            raise UserError(f"{key} cannot be {value!r:.60}", f"give {fix}, or leave the key out") from None
    return words


def _plain(value: object) -> object:
    """Returns a path or a number of numpy as JSON has it. Raises TypeError for anything else."""
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    if callable(item := getattr(value, "item", None)):
        return item()
    raise TypeError(type(value).__name__)
