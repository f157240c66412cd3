"""Evaluates a prompting baseline: plays a fixed task set with a model that is not trained, and keeps every trial.

    NAME.eval.jsonl             one row per evaluation, as `gagpo eval` writes it, with its cost in tokens
    NAME.eval.episodes.jsonl    the settings, then one line per trial; trials in it are not played again
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from deploy.launch.planning.task_sets import asked_for, engine_name
from deploy.runs.policies import PlayablePolicy
from envservice.base import Environment
from envservice.registry import find_spec, make_template, open_environment
from envservice.text.response_format import without_thought
from rollout.prompting.endpoint import EndpointModel, endpoint_client
from rollout.prompting.model import AskedModel, ContextFull
from rollout.prompting.policies import make_policy
from rollout.prompting.trials import PlayedTrial, TaskPlayer
from services.config.secrets import endpoint_key
from services.config.tree import Config
from services.controller.evaluation import by_rule
from services.errors import EnvFault, UserError
from services.files import NOT_JSON, lock_alone, open_plain, read_bounded
from services.process.threads import DaemonThread
from services.statistics import success_interval
from services.telemetry.metrics_file import FILE_BYTES, FORMAT, append_row, keep_row

_FIRST = f'{{"format": {FORMAT}, "settings": '.encode()
Progress = Callable[[int, int], object]
"""Takes the number of finished tasks and of all tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptingPlan:
    """The policy, its config and its tasks."""

    policy: str
    """direct, react or reflexion."""
    config: Config
    split: str
    tasks: tuple[str, ...]
    environment: Environment
    prompt_tokens: int | None = None
    """Longest prompt of our own sampler. None: an endpoint decides."""
    weights: str | None = None
    """Digest of the files of a model in our own sampler, "" if its name identifies its weights. None: an endpoint's."""

    def settings(self, model: str) -> dict[str, Any]:
        """Returns all that decides a trial. Trials of other settings are never mixed with these."""
        config = self.config
        return {
            "policy": self.policy, "model": model, "env": self.environment.name, "split": self.split,
            "engine": engine_name(self.environment), "prompt": config.env.prompt, "history": config.env.history,
            "max_steps": config.env.max_steps, "temperature": config.eval.temperature, "seed": config.seed,
            "answer_tokens": config.rollout.max_response_tokens,
            "trials": config.prompting.trials if self.policy == "reflexion" else 1,
            "memory": config.prompting.memory if self.policy == "reflexion" else 0,
            **self._of_sampler()}

    def _of_sampler(self) -> dict[str, Any]:
        """Returns the settings that only our own sampler reads. Unset ones are left out: files of older versions lack
        them."""
        if self.prompt_tokens is None:
            return {}
        model = self.config.model
        optional = {"weights": self.weights,
                    "chat_template": None if model.chat_template is None else str(model.chat_template),
                    "chat_template_kwargs": model.chat_template_kwargs, "system_prompt": model.system_prompt}
        return {"prompt_tokens": self.prompt_tokens, **{key: value for key, value in optional.items() if value}}


def make_plan(config: Config, policy: str, split: str | None, *, weights: str | None = None) -> PromptingPlan:
    """Returns the plan for a split; None: the held-out one. `weights`: see PromptingPlan.

    Raises UserError for missing data, for a service of the environment that does not answer, and if the policy `direct`
    would ask by a prompt without instructions.
    """
    chats = make_template(config.env).chat
    if policy == "direct" and not chats:
        raise UserError(f"env.prompt={config.env.prompt} is raw text without instructions, for models trained on it",
                        "set env.prompt=full, or another prompt for chat models" + (
                            ", or leave out --policy to play a model as it was trained" if weights is not None else ""))
    environment = open_environment(config.env)
    find_spec(config.env.name).reachable(config.env)
    chosen, tasks = asked_for(environment, split, config.eval.panel)
    return PromptingPlan(policy=policy, config=config, split=chosen, tasks=tasks, environment=environment,
                         prompt_tokens=None if weights is None else config.rollout.max_prompt_tokens, weights=weights)


def episodes_file(results: Path) -> Path:
    """Returns the file of the trials that belongs to a file of results."""
    return results.with_name(f"{results.stem}.episodes.jsonl")


@contextmanager
def only_player(file: Path) -> Iterator[None]:
    """Locks the file of the trials until the block or the process ends, so that no trial is played and counted twice.

    Raises UserError if another evaluation plays into it.
    """
    with file.open("ab") as lock:
        lock_alone(lock, file, elsewhere="choose a file on storage with flock with --out", taken=UserError(
            f"another evaluation plays into {file}", "wait for it, or choose another file with --out"))
        yield


class _Header(msgspec.Struct):
    """The first line of a file of trials."""

    settings: dict[str, Any]


def open_trials(file: Path, settings: Mapping[str, Any]) -> list[PlayedTrial]:
    """Returns the trials that are kept, in order. Begins a new file with the settings. Skips damaged lines.

    Raises UserError if the file does not begin with settings, or with other ones.
    """
    if not _begun(file):
        file.write_bytes(b"")
        append_row(file, {"settings": settings})
    lines = [line for line in read_bounded(file, FILE_BYTES).splitlines() if line]
    try:
        kept = msgspec.json.decode(next(iter(lines), b""), type=_Header).settings
    except NOT_JSON:
        raise UserError(f"{file} does not begin with the settings of its trials", "choose another file with --out") \
            from None
    for key in sorted(settings.keys() | kept.keys()):
        if kept.get(key) != settings.get(key):
            raise UserError(f"{file} has trials with {key}={kept.get(key)}, and this evaluation has "
                            f"{key}={settings.get(key)}", "choose another file with --out")
    return [trial for trial in map(_trial, lines[1:]) if trial is not None]


def _begun(file: Path) -> bool:
    """Returns whether the file has more than a part of the settings: a full disk may have cut them short."""
    try:
        with open_plain(file) as lines:
            first = lines.readline()
    except FileNotFoundError:
        return False
    return first.endswith(b"\n") or not first.startswith(_FIRST[:len(first)])


def _trial(line: bytes) -> PlayedTrial | None:
    try:
        return msgspec.json.decode(line, type=PlayedTrial)
    except NOT_JSON:
        return None


async def play(plan: PromptingPlan, model: AskedModel, name: str, file: Path, progress: Progress, *,
               report: Callable[[str], object] = lambda _: None) -> dict[str, Any]:
    """Plays what `file` does not have yet, and returns the summary. `name`: the model's, as the settings record it.

    A task whose environment fails, or whose first prompt is too long, is left out, and played again by the next call.
    `report` takes a line about the first one that fails.
    Raises UserError, EngineFault and DeadlineExceeded; the trials before that are kept.
    """
    settings, config = plan.settings(name), plan.config
    by_task: dict[str, list[PlayedTrial]] = defaultdict(list)

    def keep(trial: PlayedTrial) -> None:
        if trial.steps:  # else the first prompt was too long, which another config can change
            keep_row(file, msgspec.to_builtins(trial), wait_s=config.learner.collective_s)
        by_task[trial.task].append(trial)

    with only_player(file), DaemonThread("environment") as thread:
        for trial in open_trials(file, settings):
            by_task[trial.task].append(trial)
        player = TaskPlayer(environment=plan.environment, thread=thread, model=model, settings=config.prompting,
                            policy=make_policy(plan.policy, make_template(config.env)), seed=config.seed,
                            max_steps=config.env.max_steps)
        failed = await _all(plan.tasks, player, by_task, keep, progress, report=report)
    complete = {task: by_task[task] for task in plan.tasks
             if task not in failed and any(trial.steps for trial in by_task[task])}
    if not complete:
        raise _nothing_played(plan, failed.values())
    return summarise(plan, settings, complete, dropped=len(plan.tasks) - len(complete))


def _nothing_played(plan: PromptingPlan, reasons: Collection[EnvFault | ContextFull]) -> EnvFault | UserError:
    faults = [reason for reason in reasons if isinstance(reason, EnvFault)]
    if faults or not reasons:
        return EnvFault(f"none of the {len(plan.tasks)} games could be played: "
                        f"{faults[0] if faults else 'each is over before its first turn'}")
    return UserError(f"the first prompt of every game is longer than the model reads: {next(iter(reasons))}",
                     "choose a model that reads more, or lower rollout.max_response_tokens, whose room servers keep"
                     if plan.prompt_tokens is None else f"raise rollout.max_prompt_tokens above {plan.prompt_tokens}")


async def _all(tasks: Sequence[str], player: TaskPlayer, by_task: Mapping[str, Sequence[PlayedTrial]],
               keep: Callable[[PlayedTrial], object], progress: Progress, *,
               report: Callable[[str], object]) -> dict[str, EnvFault | ContextFull]:
    """Plays all tasks, several at once. Returns the tasks that are left out, with the reason: their environment failed,
    or the model cannot read their first prompt."""
    failed: dict[str, EnvFault | ContextFull] = {}
    left = [task for task in tasks if player.open_trial(by_task.get(task, ()))]
    queue, done = iter(left), len(tasks) - len(left)

    async def worker() -> None:
        nonlocal done
        for task in queue:
            try:
                await player.play(task, by_task.get(task, ()), keep)
            except (EnvFault, ContextFull) as error:
                if not failed:
                    why = "cannot be played" if isinstance(error, EnvFault) else "has too long a first prompt"
                    report(f"{task} {why} and is left out: {error}")
                failed[task] = error
            done += 1
            progress(done, len(tasks))

    workers = [asyncio.create_task(worker()) for _ in range(player.settings.concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return failed


def summarise(plan: PromptingPlan, settings: Mapping[str, Any], by_task: Mapping[str, Sequence[PlayedTrial]], *,
              dropped: int) -> dict[str, Any]:
    """Returns one row as in evaluations.jsonl, with the cost in tokens. The last trial of a task counts.

    success_by_trial: share of tasks that are solved after one trial, after two, and so on (Reflexion).
    """
    last = {task: trials[-1] for task, trials in by_task.items()}
    won = {task: float(trial.won) for task, trial in last.items()}
    mean, low, high = success_interval(list(won.values()))
    by_type: dict[str, list[float]] = defaultdict(list)
    for task, value in won.items():
        by_type[plan.environment.task_type(task)].append(value)
    played = [trial for trials in by_task.values() for trial in trials]
    steps = [step for trial in played for step in trial.steps]
    scores = [trial.score for trial in last.values() if trial.score is not None]
    rounds = settings["trials"]
    return {
        "label": f"eval-{plan.policy}", "step": 0, "version": "", "split": plan.split,
        "policy": f"{plan.policy} with {settings['model']}", "time": time.time(),
        "temperature": settings["temperature"], "tasks": len(won), "episodes": len(played), "dropped": dropped,
        "success_rate": mean, "success_low": low, "success_high": high,
        "task_score": sum(scores) / len(scores) if scores else None,
        **by_rule([(trial.score, trial.rule_scores) for trial in last.values()]),
        "success_by_type": {name: sum(values) / len(values) for name, values in sorted(by_type.items())},
        "success_by_trial": [sum(any(t.won for t in trials[:k]) for trials in by_task.values()) / len(by_task)
                             for k in range(1, rounds + 1)],
        "episode_length": len(steps) / len(played),
        "invalid_share": sum(not step.valid for step in steps) / max(1, len(steps)),
        "inadmissible_share": sum(not step.admissible for step in steps) / max(1, len(steps)),
        "success_by_task": won, "env": settings["env"], "engine": settings["engine"],
        "calls": sum(trial.calls for trial in played),
        "prompt_tokens": sum(trial.prompt_tokens for trial in played),
        "answer_tokens": sum(trial.answer_tokens for trial in played),
        "uncounted_calls": sum(trial.uncounted for trial in played),
        "empty_answers": sum(not without_thought(step.answer) for step in steps),
        "context_full": sum(trial.end == "context" for trial in played),
    }


@asynccontextmanager
async def asked_endpoint(config: Config, url: str, name: str | None,
                         report: Callable[[str], object]) -> AsyncIterator[tuple[AskedModel, str]]:
    """Yields a model behind an endpoint and its name. `name`: None for the only model that it serves. `report`: see
    EndpointModel."""
    async with endpoint_client(url, endpoint_key(config.prompting), config.prompting) as http:
        model = EndpointModel(http=http, model=name or "", settings=config.prompting,
                              temperature=config.eval.temperature, report=report,
                              max_tokens=config.rollout.max_response_tokens)
        if name is None:
            await model.choose_model()
        yield model, model.model


@asynccontextmanager
async def asked_sampler(config: Config, policy: PlayablePolicy, *, tags: bool,
                        report: Callable[[str], object]) -> AsyncIterator[tuple[AskedModel, str]]:
    """Yields a policy's model in an engine of this process, and the name of its weights. `tags`: see SampledModel.
    `report` takes a line before the engine starts.

    `config`: that of an evaluation (deploy/launch/planning/fit.py). Raises UserError if the model has no chat template
    or cannot be loaded, and for GPUs that this machine lacks.
    """
    from deploy.launch.checks.chat_template import check_template
    from deploy.launch.checks.gpu_checks import check_builds, check_gpus
    from deploy.launch.checks.preflight import check_policy
    from deploy.launch.planning import gpu_pool
    from rollout.engine.engine import Engine
    from rollout.prompt_renderer import load_text
    from rollout.prompting.model import SampledModel
    from services.chat import check_chat
    from services.records import Version

    check_gpus(config, gpu_pool.visible(), private=True)
    check_builds(config)
    check_policy(config)
    check_template(config, folder=policy.folder, conversations=True)
    folder, text = policy.folder, load_text(str(policy.folder), config.env, config.model)
    assert text.chat is not None
    check_chat(text.chat, folder)
    report(f"starting a sampler with {policy.title}")
    engine = Engine(folder, Version(incarnation=0, step=0, digest="asked"), config=config.rollout,
                    dtype=config.model.dtype, seed=config.seed)
    await engine.start()
    try:
        yield SampledModel(engine=engine, text=text, limits=config.rollout,
                           temperature=config.eval.temperature, tags=tags), policy.name
    finally:
        await engine.close()
