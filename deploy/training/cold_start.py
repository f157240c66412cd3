"""Makes the cold start: demonstrations by a scripted player or from a file, then next-token training on them."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.console.plain import Pace
from services.amounts import number_of, span
from services.answer_end import answer_end, generation_ends
from services.chat import chat_format
from services.config.tree import Config
from services.errors import EnvFault, UserError, described
from services.files import open_as_folder, sync_tree, write_whole
from services.outages import retry_files, retry_server
from services.seeds import seed_for
from services.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from envservice.base import Environment, PromptTemplate
    from envservice.spec import Teacher
    from learner.cold_start.sft import Budget, Lesson, SftProgress
    from learner.cold_start.sft_data import Example, TokenRow
    from rollout.demonstrations import Demonstration

_REPORT_SECONDS = 5.0

Report = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """Examples to train on, and their counts. They come from the scripted player on the training games, or from a file.
    """

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
    """Game that failed -> reason. `games` does not count it, but its episodes before the failure stay."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the counts that sft.json records."""
        return {"split": self.split, "digest": self.digest, "games": self.games, "episodes": self.episodes,
                "won": self.won, "rows": len(self.examples), "seconds": round(self.seconds, 1)}


def gather_demonstrations(config: Config, template: PromptTemplate, *, seed: int, report: Report,
                          passing: Report) -> Demonstrations:
    """Returns the examples of sft.file, or new demonstrations without one. Raises UserError if there are none.

    `passing` takes lines about the progress.
    """
    from envservice.registry import find_teacher, open_environment
    from learner.cold_start.trajectories import read_trajectories

    if config.sft.file is None:
        shown = demonstrations(config, open_environment(config.env), find_teacher(config.env), template, seed=seed,
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
    shown = read_trajectories(config.sft.file, chat=template.chat)
    report(f"demonstrations: {number_of(shown.episodes, 'episode')} with {number_of(len(shown.examples), 'answer')} in "
           f"{config.sft.file}")
    return Demonstrations(examples=shown.examples, split="file", digest=shown.digest, games=0, episodes=shown.episodes,
                          won=0, seconds=0.0)


def demonstrations(
    config: Config, environment: Environment, teacher: Teacher, template: PromptTemplate, *, seed: int, report: Report
) -> Demonstrations:
    """Plays sft.demos_per_game episodes of every training game. Examples are the steps of won episodes whose action is
    not noise, and the judgements that these episodes show.

    After an episode that fails, its game is played no more. Every second episode is played in disguise (other names for
    objects), if the environment's teacher offers that. Raises UserError, and EnvFault if no episode could be played.
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
            play = partial(demonstrate, environment, task, teacher=teacher, template=template, seed=seed_for(seed, k),
                           sft=config.sft, max_steps=config.env.max_steps, disguised=k % 2 == 1)
            try:
                shown = retry_server(play, config.env.outage_seconds, report)
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


FORMAT = 1
TOKENIZER_TEXTS = 20_000
"""Number of prompts and answers that train the tokenizer. Its vocabulary stops growing well before that number."""


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
    from learner.cold_start.sft import Budget, Lesson, SftProgress
    from learner.cold_start.states import folder_of

    passing = passing or report
    path = continue_from or config.model.path
    if path is not None and not (path / "config.json").exists():
        raise UserError(f"{path} holds no model", "give model.path a Hugging Face folder")
    seed = seed_for(config.seed, "sft", "start" if continue_from is None else "more")
    shown, tokenizer, rows = _demonstrated(config, path, seed=seed, report=report, passing=passing)
    budget = Budget(minutes=minutes) if epochs is None else \
        Budget(updates=epochs * math.ceil(len(rows) / config.sft.batch_rows))
    report(f"training for {_describe_budget(budget)} on {number_of(len(rows), 'demonstrated step')} of "
           f"{sum(len(r.ids) for r in rows) / len(rows):.0f} tokens")
    train = _trainer(config, path, out, tokenizer)
    made = train(out, Lesson(rows, budget, seed), report=report, on_progress=lambda now: _report(passing, now, budget))
    _report(report, SftProgress(**made["training"]), budget)
    facts = {
        "format": FORMAT, "minutes": minutes, "epochs": epochs,
        "continued_from": str(continue_from) if continue_from else None,
        "vocabulary": len(tokenizer), "demonstrations": shown.as_dict(), **made,
    }
    retry_files(lambda: write_whole(out / "sft.json", json.dumps(facts, indent=1) + "\n"),
                seconds=config.learner.collective_s, what=f"{out} could not be written", note=report)
    shutil.rmtree(folder_of(out), ignore_errors=True)
    return out


def write_demonstrations(config: Config, model: Path, out: Path, *, report: Report = print,
                         passing: Report | None = None) -> None:
    """Writes the rows of a cold start of `config` into the file `out`, as tokens of the model in a folder.

    Each call writes the same rows. Raises UserError as cold_start does, and DeadlineExceeded if `out` cannot be written
    for learner.collective_s seconds.
    """
    from learner.cold_start.sft_data import save_rows

    _, _, rows = _demonstrated(config, model, seed=seed_for(config.seed, "sft", "start"), report=report,
                               passing=passing or report)
    retry_files(partial(save_rows, rows, out), seconds=config.learner.collective_s,
                what=f"{out} could not be written", note=report)
    report(f"imitation during RL: {number_of(config.learner.imitation.rows, 'row')} a step, of {len(rows):,}")


def _demonstrated(config: Config, path: Path | None, *, seed: int, report: Report, passing: Report,
                  ) -> tuple[Demonstrations, PreTrainedTokenizerBase, list[TokenRow]]:
    """Returns the demonstrations, the tokenizer of the model at `path` (None: a new one), and the rows. The rows of
    several environments follow one another."""
    from envservice.registry import make_template

    templates = [make_template(view.env) for view in config.views]
    shown = [gather_demonstrations(view, template, seed=seed, report=report, passing=passing)
             for view, template in zip(config.views, templates, strict=True)]
    merged = shown[0] if len(shown) == 1 else _merged(shown)
    passing(f"makes tokens of {number_of(len(merged.examples), 'answer')}")
    tokenizer = _tokenizer(config, path, merged.examples, report)
    rows = [row for view, template, its in zip(config.views, templates, shown, strict=True)
            for row in _encoded(view, path, tokenizer, its.examples, template=template)]
    _check_length(len(rows), len(merged.examples), config.rollout.row_tokens, report)
    return merged, tokenizer, rows


def _encoded(config: Config, path: Path | None, tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example], *,
             template: PromptTemplate) -> list[TokenRow]:
    """Returns the rows of one environment's examples. `config`: with that environment alone."""
    from envservice.registry import find_spec
    from envservice.text.tool_calls import TAGS
    from learner.cold_start.sft_data import encode

    stops = find_spec(config.env.name).stops
    chat = chat_format(tokenizer, config.model, {*TAGS, *stops}) if template.chat else None
    end = answer_end(tokenizer, chat, stops=stops, ends=generation_ends(path) if path is not None else ())
    return encode(tokenizer, examples, chat=chat, max_tokens=config.rollout.row_tokens, end=end)


def _merged(shown: Sequence[Demonstrations]) -> Demonstrations:
    """Returns the demonstrations of several environments as one."""
    return Demonstrations(
        examples=[example for one in shown for example in one.examples],
        split="+".join(dict.fromkeys(one.split for one in shown)), digest="+".join(one.digest for one in shown),
        games=sum(one.games for one in shown), episodes=sum(one.episodes for one in shown),
        won=sum(one.won for one in shown), seconds=sum(one.seconds for one in shown),
        failed={task: reason for one in shown for task, reason in one.failed.items()})


def _trainer(config: Config, path: Path | None, out: Path, tokenizer: PreTrainedTokenizerBase
             ) -> Callable[..., dict[str, Any]]:
    """Returns the function that trains, on the learner's ranks or in this process. A single rank also continues a state
    that several ranks have written."""
    from deploy.training.rank_imitation import imitate
    from learner.cold_start.states import folder_of, state_steps

    if path is not None and (config.imitates_on_ranks or state_steps(folder_of(out))):
        return partial(imitate, config, path)
    return partial(_train_in_process, config, path, tokenizer)


def _check_length(kept: int, examples: int, max_tokens: int, report: Report) -> None:
    """Reports how many examples are too long. Raises UserError if all of them are."""
    if not kept:
        raise UserError(f"all {examples} demonstrated steps are longer than {max_tokens} tokens",
                        "raise rollout.max_prompt_tokens")
    if kept < examples:
        report(f"{examples - kept} of {examples} demonstrated steps are left out: they are longer than {max_tokens} "
               "tokens (rollout.max_prompt_tokens and max_response_tokens)")


def _tokenizer(config: Config, path: Path | None, examples: Sequence[Example],
               report: Report) -> PreTrainedTokenizerBase:
    """Returns the tokenizer of the model at `path`, or a new one if `path` is None."""
    from envservice.registry import find_spec
    from learner.cold_start.scratch_model import train_tokenizer

    if path is not None:
        return load_tokenizer(path)
    stride = max(1, 2 * len(examples) // TOKENIZER_TEXTS)
    texts = (str(text) for one in examples[::stride] for text in (one.prompt, one.response))
    specs = [find_spec(entry.name) for entry in config.env.entries]
    stops = list(dict.fromkeys(stop for spec in specs for stop in spec.stops))
    numbered = [spec.teacher is not None and spec.teacher.names == "numbered" for spec in specs]
    tokenizer = train_tokenizer(texts, stops, "numbered" if all(numbered) else "both" if any(numbered) else "words")
    report(f"tokenizer: {len(tokenizer)} tokens")
    return tokenizer


def _train_in_process(config: Config, path: Path | None, tokenizer: Any, out: Path, lesson: Lesson, *, report: Report,
                      on_progress: Callable[[SftProgress], object]) -> dict[str, Any]:
    """Trains the model at `path`, or a new one if `path` is None, in this process on the CPU, and writes it."""
    from transformers.utils.logging import disable_progress_bar

    from learner.cold_start.scratch_model import scratch_model
    from learner.cold_start.sft import train
    from learner.model.loading import plain_model

    disable_progress_bar()
    positions = config.rollout.row_tokens
    model = plain_model(path, "float32") if path is not None else scratch_model(
        config.model, tokenizer, max_positions=positions, seed=seed_for(config.seed, "weights"))
    parameters = sum(weight.numel() for weight in model.parameters())
    report(f"model: {parameters:,} weights")
    with _threads(config.learner.threads):
        made = train(model, lesson, config.sft, pad_id=_pad_id(tokenizer), token_budget=config.learner.token_budget,
                     muon=config.model.path is None, report=on_progress)
    retry_files(partial(_save, model, tokenizer, out), seconds=config.learner.collective_s,
                what=f"{out} could not be written", note=report)
    return {"training": made.as_dict(), "parameters": parameters}


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """Writes the model and the tokenizer. Raises OSError, and can then be called again."""
    from learner.checkpoints.export import disk_errors

    with disk_errors():
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
    open_as_folder(out)
    sync_tree(out)  # sft.json will say that all of it is there, also after a power loss


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Lets torch use `count` threads until the block ends."""
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


def _report(report: Report, now: SftProgress, budget: Budget) -> None:
    spent = budget.spent(now.updates, now.seconds)
    left = f", about {span(now.seconds / spent - now.seconds)} left" if 0 < spent < 1 else ""
    report(f"cold start {now.seconds / 60:4.1f} min, {spent:.0%} of {_describe_budget(budget)}: "
           f"{number_of(now.updates, 'update')}, {now.epochs:.1f} epochs, "
           f"{now.rows / max(now.seconds, 1e-9):.0f} rows/s, loss {now.loss_response:.2f} per answer{left}")


def _describe_budget(budget: Budget) -> str:
    return f"{budget.minutes:.1f} min" if budget.updates is None else number_of(budget.updates, "update")
