"""Evaluates a policy outside a run: on a fixed task set, with rollout workers and without a learner."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.launch.ray_address import ray_address
from deploy.runs.folder import is_run
from deploy.runs.policies import PlayablePolicy
from services.config.file import dump_config, load_config
from services.config.redis import RedisSection, redis_url
from services.config.secrets import env_token, masked
from services.config.tree import Config
from services.errors import StoreFault, UserError
from services.process.guard import HeldFolder

if TYPE_CHECKING:
    from deploy.console.plain import StatusLines
    from deploy.launch.scaling import Scaling
    from deploy.training.loading import Loading
    from services.controller.controller import Controller, Hooks
    from services.controller.supervise import Supervisor
    from services.controller.tickets import EvalRequest
    from services.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The result of an evaluation."""

    summary: dict[str, Any]
    """A row as in evaluations.jsonl, plus the policy's title, the time, and the seconds of loading and of playing."""
    file: Path
    """The file to which the summary was appended."""


def results_file(path: Path) -> Path:
    """Returns the file for evaluations of the policy at `path`: `eval.jsonl` in a run's folder, else NAME.eval.jsonl
    next to the model's folder. That folder itself is never changed, because its digest is part of records.
    """
    path = path.resolve()
    return path / "eval.jsonl" if is_run(path) else path.with_name(f"{path.name}.eval.jsonl")


def check_results(file: Path) -> None:
    """Raises UserError if no result can be appended to `file`."""
    if file.is_dir():
        raise UserError(f"{file} is a folder", "name a file in it with --out")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UserError(f"{file} cannot be written", "choose another file with --out")


def evaluate(config: Config, policy: PlayablePolicy, *, split: str | None, file: Path) -> Evaluated:
    """Plays the task set once and appends the result to `file`.

    Starts the processes that this needs, and stops them at the end. Before that, raises UserError for any mistake that
    can be found without them.
    """
    from rich.console import Console

    from deploy.console.plain import StatusLines
    from deploy.launch.checks import preflight
    from deploy.launch.planning.fit import evaluation_config
    from services.telemetry.metrics_file import keep_row

    report = partial(print, file=sys.stderr, flush=True)
    config = evaluation_config(config, report)
    preflight.check_parts(config, learner=False)
    check_results(file)
    with StatusLines(Console(stderr=True)) as lines:
        lines.note(f"playing {policy.title}; the result will be in {file.absolute()}")
        summary = _play(config, policy.folder, split, lines)
        row = {"policy": policy.title, "time": time.time(), **summary, "step": policy.step or 0}
        keep_row(file, row, wait_s=config.learner.collective_s, note=lines.note)
    return Evaluated(summary=row, file=file)


def _play(config: Config, model: Path, split: str | None, lines: StatusLines) -> dict[str, Any]:
    from deploy.launch.checks.games import check_ends
    from deploy.launch.checks.servers import check_versions
    from deploy.launch.planning.task_sets import asked_for, engine_name, task_stream
    from deploy.launch.scaling import Scaling
    from deploy.launch.topology import publish_folder, topology
    from deploy.training.loading import Loading
    from envservice.registry import open_environment
    from services.controller.controller import Controller
    from services.controller.tickets import EvalRequest, TrainTickets

    environment = open_environment(config.env)
    check_ends(config, environment)
    engine, token = engine_name(environment), env_token(config.env)
    check_versions(config.env.urls, env=environment.name, engine=engine, token=token)
    chosen, tasks = asked_for(environment, split, config.eval.panel)
    training = environment.tasks(environment.training_splits()[0])
    stays = config.redis.url or config.redis.bodies  # what is in a Redis of its own ends with that
    with (working_folder(config, lines.note) as folder,
          topology(config, run=run_of(folder), folder=folder, note=lines.note) as parts,
          erased(parts.store, parts.supervisor, lines.note) if stays else nullcontext()):
        lease = parts.store.leases.acquire("controller", parts.run, ttl_s=30.0)
        scaling = Scaling(parts, lease, lambda index: parts.rollout_worker(index, model), note=lines.note)
        loading = Loading(parts.supervisor.states, parts.store.state.beats, waiting=lines.waiting)
        controller = Controller(
            config=config, store=parts.store, lease=lease, supervisor=parts.supervisor,
            tickets=TrainTickets(config=config, tasks=task_stream(config, environment, training)),
            request=lambda _: None, hooks=_hooks(lines, environment.task_type, loading, scaling))
        started = time.monotonic()
        version = publish_folder(parts, model, holder=parts.run)
        scaling.start()
        request = EvalRequest(label="eval", version=version, split=chosen, tasks=tasks,
                              temperature=config.eval.temperature, seed=config.seed + 1, env=config.env)
        summary = _timed(controller, request, loading, started)
    return {**summary, "env": environment.name, "engine": engine}


def _timed(controller: Controller, request: EvalRequest, loading: Loading, started: float) -> dict[str, Any]:
    """Plays the request. Returns the summary with the seconds of loading, which began at `started`, and of playing."""
    loaded: list[float] = []
    loading.then(lambda: loaded.append(time.monotonic()))
    (summary,) = controller.evaluate_now([request])
    began, ended = loaded[0] if loaded else started, time.monotonic()
    return {**summary, "loading_seconds": began - started, "seconds": ended - began}


def run_of(folder: Path) -> str:
    """Returns the name of an evaluation with this folder in Redis, where it counts as a run."""
    return folder.name.removeprefix("gagpo-")


def _erase_keys(folder: Path, *, ours: RedisSection, note: Callable[[str], object]) -> None:
    """Deletes the keys of the killed evaluation with this folder from a shared Redis, or notes that they stay."""
    erase_keys(run_of(folder), folder / "config.yaml", ours=ours, what="a killed evaluation", note=note)


@contextmanager
def working_folder(config: Config, note: Callable[[str], object] = lambda _: None) -> Iterator[Path]:
    """Yields a new folder for the processes of an evaluation, with its config.yaml, and removes it at the end. If this
    process is killed, the next evaluation removes it, and its keys from Redis. `note` takes a line if they stay.

    On a Ray cluster it is below runs_dir, because processes on other nodes use it too. Raises UserError if no folder
    can be locked there.
    """
    place = Path(tempfile.gettempdir()) if ray_address(config) is None else config.runs_dir.absolute()
    try:
        place.mkdir(parents=True, exist_ok=True)
        held = HeldFolder("gagpo-eval-", place, mode=0o777 if config.shared else 0o700,
                          before_removal=partial(_erase_keys, ours=config.redis, note=note))
    except OSError as error:
        raise UserError(f"no folder can be made and locked in {place} ({error.strerror})",
                        "set runs_dir to storage with flock that you may write to") from error
    try:
        dump_config(config, held.path / "config.yaml")
        yield held.path
    finally:
        held.remove()  # on shared storage a node may still hold a file of it


@contextmanager
def erased(store: Store, supervisor: Supervisor, note: Callable[[str], object]) -> Iterator[None]:
    """Deletes the keys of `store` from a shared Redis at the end of the block, also after an error.

    Do not use it for a private Redis, which ends with its keys: a full disk could delay the deletion by half an hour.
    Stops the supervised processes first, because they write keys. If Redis fails, it notes that the keys stay: the
    result or the error of the block matters more.
    """
    try:
        yield
    finally:
        supervisor.stop()
        try:
            store.erase()
        except StoreFault as fault:
            note(f"the keys of this evaluation stay in Redis: {fault}")


def _hooks(lines: StatusLines, task_type: Callable[[str], str], loading: Loading, scaling: Scaling) -> Hooks:
    from services.controller.controller import Hooks

    def tick() -> None:
        loading.tick()
        scaling.tick()  # publishes the list of environment servers, which may change

    return Hooks(note=lines.note, evaluated=lambda *_: None, task_type=task_type, tick=tick,
                 playing=loading.after(lambda label, done, total: lines.at(label, done, total, "games")),
                 waits=lambda text: lines.passing(text or "continues"))


def erase_keys(run: str, config_file: Path, *, ours: RedisSection, what: str, note: Callable[[str], object]) -> None:
    """Deletes the keys and bodies of a run from the Redis that its config names, or notes that the keys of `what` stay.

    If the config names no Redis, the run had its own, and only the bodies are deleted. The file has no password. `ours`
    has it, if it is the same Redis.
    """
    from services.store.bodies import Bodies
    from services.store.connection import briefly
    from services.store.store import Store

    try:
        theirs = load_config(config_file).redis
        redis = ours if masked(ours.url or "") == theirs.url else theirs
        if (url := redis_url(redis)) is not None:
            Store(url, run, settings=briefly(redis)).erase()
        else:
            Bodies(redis.bodies, run, briefly(redis).outage_seconds).sweep(lambda: ((), {}))
    except (UserError, StoreFault) as error:
        note(f"the keys of {what} stay in Redis: {error}")
