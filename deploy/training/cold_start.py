"""Makes the cold start: demonstrations by a scripted player or from a file, then next-token training on them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.console.plain import Pace, span
from services.chat import chat_format
from services.config.tree import Config
from services.errors import EnvFault, UserError, described
from services.files import open_as_folder, sync_tree, write_whole
from services.patience import while_folder_away
from services.plural import number_of
from services.seeds import seed_for
from services.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from envservice.base import Environment, PromptTemplate
    from envservice.spec import EnvironmentSpec, Teacher
    from learner.cold_start.sft import Budget, SftProgress
    from learner.cold_start.sft_data import Example
    from rollout.demonstrations import Demonstration

FORMAT = 1
TOKENIZER_TEXTS = 20_000
"""Number of prompts and answers that train the tokenizer. Its vocabulary stops growing well before that number."""
_REPORT_SECONDS = 5.0

Report = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """Examples to train on, and their counts. They are of the scripted player on the training games, or of a file."""

    examples: list[Example]
    split: str
    """`file` for the trajectories of sft.file."""
    digest: str
    """Digest over the contents of the split's games, or of the file."""
    games: int
    episodes: int
    won: int
    seconds: float
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Games that could not be shown, with the reason. They are left out."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the counts that sft.json records."""
        return {"split": self.split, "digest": self.digest, "games": self.games, "episodes": self.episodes,
                "won": self.won, "rows": len(self.examples), "seconds": round(self.seconds, 1)}


def cold_start(
    config: Config, out: Path, *, minutes: float, epochs: int | None = None, continue_from: Path | None = None,
    report: Report = print, passing: Report | None = None,
) -> Path:
    """Trains for `minutes`, or for `epochs` if they are given. Writes the model, the tokenizer and, last, sft.json into
    `out`.

    The demonstrations are new ones on training games, or those of sft.file. Training starts from `continue_from` (with
    other new demonstrations than the first time), else from model.path, else from a new tokenizer and a new model.
    `passing` (if None, `report`) takes lines about the progress. Raises UserError if data is missing or damaged, if the
    scripted player never wins, or the model path holds no model, and DeadlineExceeded if `out` cannot be written for
    learner.collective_s seconds.
    """
    from envservice.registry import find_spec, make_template
    from envservice.tool_calls import TAGS
    from learner.cold_start.sft import Budget, train
    from learner.cold_start.sft_data import encode

    passing = passing or report
    path = continue_from or config.model.path
    if path is not None and not (path / "config.json").exists():
        raise UserError(f"{path} holds no model", "give model.path a Hugging Face folder")
    seed = seed_for(config.seed, "sft", "start" if continue_from is None else "more")
    spec, template = find_spec(config.env.name), make_template(config.env)
    shown = _shown(config, spec, template, seed=seed, report=report, passing=passing)
    model, tokenizer = _start(config, path, shown.examples, spec, report)
    max_tokens = config.rollout.max_prompt_tokens + config.rollout.max_response_tokens
    chat = chat_format(tokenizer, config.model, {*TAGS, *spec.stops}) if template.chat else None
    rows = encode(tokenizer, shown.examples, chat=chat, max_tokens=max_tokens, stops=spec.stops)
    _check_length(len(rows), len(shown.examples), max_tokens, report)
    budget = Budget(minutes=minutes) if epochs is None else \
        Budget(updates=epochs * math.ceil(len(rows) / config.sft.batch_rows))
    report(f"training {sum(w.numel() for w in model.parameters()):,} weights for {_whole(budget)} "
           f"on {number_of(len(rows), 'demonstrated step')} of {sum(len(r.ids) for r in rows) / len(rows):.0f} tokens")
    with _threads(config.learner.threads):
        progress = train(
            model, rows, config.sft, budget=budget, pad_id=_pad_id(tokenizer), seed=seed,
            muon=config.model.path is None, report=lambda now: _tell(passing, now, budget))
    _tell(report, progress, budget)
    facts = {
        "format": FORMAT, "minutes": minutes, "epochs": epochs,
        "continued_from": str(continue_from) if continue_from else None,
        "vocabulary": len(tokenizer), "parameters": sum(w.numel() for w in model.parameters()),
        "demonstrations": shown.as_dict(), "training": progress.as_dict(),
    }
    while_folder_away(partial(_save, model, tokenizer, facts, out), seconds=config.learner.collective_s,
                      what=f"{out} could not be written", note=report)
    return out


def _shown(config: Config, spec: EnvironmentSpec, template: PromptTemplate, *, seed: int, report: Report,
           passing: Report) -> Demonstrations:
    """Returns the examples of sft.file, or new demonstrations without one. Raises UserError if there are none."""
    from envservice.registry import find_teacher
    from learner.cold_start.trajectories import read_trajectories

    if config.sft.file is None:
        shown = demonstrations(config, spec.open(config.env), find_teacher(config.env), template, seed=seed,
                               report=passing)
        report(f"demonstrations: {number_of(shown.episodes, 'episode')} on {number_of(shown.games, 'training game')}, "
               f"{shown.won / max(1, shown.episodes):.0%} won, {shown.seconds:.0f} s")
        for task, reason in list(shown.failed.items())[:1]:
            report(f"left out: {number_of(len(shown.failed), 'game')} that failed, such as {task} ({reason})")
        if not shown.examples:
            raise UserError(f"there is nothing to imitate: the scripted player of {config.env.name} won {shown.won} of "
                            f"{shown.episodes} episodes, and only steps of won ones are shown",
                            "raise env.max_steps, lower sft.noise, or correct the player; or set sft.file")
        return shown
    found = read_trajectories(config.sft.file, chat=template.chat)
    report(f"demonstrations: {number_of(found.episodes, 'episode')} with {number_of(len(found.examples), 'answer')} in "
           f"{config.sft.file}")
    return Demonstrations(examples=found.examples, split="file", digest=found.digest, games=0, episodes=found.episodes,
                          won=0, seconds=0.0)


def _check_length(kept: int, examples: int, max_tokens: int, report: Report) -> None:
    """Tells how many examples are too long. Raises UserError if all of them are."""
    if not kept:
        raise UserError(f"all {examples} demonstrated steps are longer than {max_tokens} tokens",
                        "raise rollout.max_prompt_tokens")
    if kept < examples:
        report(f"{examples - kept} of {examples} demonstrated steps are left out: they are longer than {max_tokens} "
               "tokens (rollout.max_prompt_tokens and max_response_tokens)")


def demonstrations(
    config: Config, environment: Environment, teacher: Teacher, template: PromptTemplate, *, seed: int, report: Report
) -> Demonstrations:
    """Plays sft.demos_per_game episodes of every training game. Examples are the steps of won episodes without noise,
    and the judgements that these episodes show.

    A game that fails is left out, as RL leaves it out. Every second episode is played in disguise (other names for
    objects), if the environment's teacher offers that. Raises UserError, and EnvFault if all games fail.
    """
    from envservice.registry import find_spec
    from rollout.demonstrations import demonstrate

    stops = find_spec(config.env.name).stops
    start = reported = time.monotonic()
    pace = Pace()
    split = environment.training_splits()[0]
    tasks = environment.tasks(split)
    examples: list[Example] = []
    failed: dict[str, str] = {}
    episodes = won = 0
    for task in tasks:
        for k in range(config.sft.demos_per_game):
            try:
                shown = demonstrate(environment, task, teacher=teacher, template=template, seed=seed_for(seed, k),
                                    sft=config.sft, max_steps=config.env.max_steps, disguised=k % 2 == 1)
            except UserError:
                raise
            except Exception as error:  # the code of an environment of the user's own may raise anything
                failed[task] = str(error) if isinstance(error, EnvFault) else described(error)
                break
            episodes, won = episodes + 1, won + shown.won
            examples.extend(_examples(shown, template, stops))
            if time.monotonic() - reported > _REPORT_SECONDS:
                reported = time.monotonic()
                report(pace.at("demonstrations:", episodes, config.sft.demos_per_game * len(tasks), "episodes"))
    if not episodes:
        raise EnvFault(f"none of the {len(tasks)} games could be shown: {failed[tasks[0]]}")
    return Demonstrations(examples=examples, split=split, digest=environment.digest(split),
                          games=len(tasks) - len(failed), episodes=episodes, won=won,
                          seconds=time.monotonic() - start, failed=failed)


def _examples(shown: Demonstration, template: PromptTemplate, stops: Sequence[str]) -> list[Example]:
    from learner.cold_start.sft_data import Example
    from rollout.judge_prompt import question, shown_answer
    from services.records import verdict_of

    if not shown.won:
        return []
    chat = template.chat
    acted = [Example(prompt=step.prompt_text, response=step.response_text) for step in shown.steps if step.train]
    judged = [(step.prompt_text, *step.judged) for step in shown.steps if step.judged]
    return acted + [Example(prompt=question(prompt, action, chat=chat, stops=stops),
                            response=shown_answer(verdict_of(good), chat=chat, stops=stops))
                    for prompt, action, good in judged]


def _start(
    config: Config, path: Path | None, examples: list[Example], spec: EnvironmentSpec, report: Report
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Returns the model to train and its tokenizer: those at `path`, or new ones if `path` is None."""
    from transformers.utils.logging import disable_progress_bar

    from envservice.registry import find_spec
    from learner.cold_start.scratch_model import scratch_model
    from learner.cold_start.tokenizer import train_tokenizer
    from learner.model.loading import plain_model

    disable_progress_bar()
    if path is not None:
        return plain_model(path, "float32"), load_tokenizer(path)
    stride = max(1, 2 * len(examples) // TOKENIZER_TEXTS)
    texts = (str(text) for one in examples[::stride] for text in (one.prompt, one.response))
    teacher = find_spec(config.env.name).teacher
    tokenizer = train_tokenizer(texts, spec.stops, "words" if teacher is None else teacher.names)
    report(f"tokenizer: {len(tokenizer)} tokens")
    positions = config.rollout.max_prompt_tokens + config.rollout.max_response_tokens
    seed = seed_for(config.seed, "weights")
    return scratch_model(config.model, tokenizer, max_positions=positions, seed=seed), tokenizer


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, facts: Mapping[str, Any], out: Path) -> None:
    """Writes the model, the tokenizer and, last, sft.json. Raises OSError, and can then be called again."""
    from learner.checkpoints.export import disk_errors

    with disk_errors():
        model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    open_as_folder(out)
    sync_tree(out)  # sft.json says that all of it is there, also after a power loss
    write_whole(out / "sft.json", json.dumps(facts, indent=1) + "\n")


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Lets torch use so many threads until the block ends."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return int(pad or 0)  # pyright: ignore[reportArgumentType]  # a list only for several tokens


def _tell(report: Report, now: SftProgress, budget: Budget) -> None:
    spent = budget.spent(now.updates, now.seconds)
    left = f", about {span(now.seconds / spent - now.seconds)} left" if 0 < spent < 1 else ""
    report(f"cold start {now.seconds / 60:4.1f} min, {spent:.0%} of {_whole(budget)}: "
           f"{number_of(now.updates, 'update')}, {now.epochs:.1f} epochs, "
           f"{now.rows / max(now.seconds, 1e-9):.0f} rows/s, loss {now.loss_response:.2f} per answer{left}")


def _whole(budget: Budget) -> str:
    return f"{budget.minutes:.1f} min" if budget.updates is None else number_of(budget.updates, "update")
