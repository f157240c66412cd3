"""Makes the cold start: demonstrations by a scripted player, then next-token training on them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.console.plain import Pace, span
from services.chat import chat_format
from services.config.tree import Config
from services.errors import UserError
from services.files import open_as_folder
from services.seeds import seed_for

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from envservice.base import Environment, PromptTemplate
    from envservice.spec import EnvironmentSpec, Teacher
    from learner.cold_start.sft import SftProgress
    from learner.cold_start.sft_data import Example

FORMAT = 1
TOKENIZER_TEXTS = 20_000
"""Number of prompts and answers that train the tokenizer. Its vocabulary stops growing well before that number."""
_REPORT_SECONDS = 5.0

Report = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """Examples to train on, from episodes of the scripted player on the training games, and their counts."""

    examples: list[Example]
    split: str
    digest: str
    """Digest over the contents of the split's games."""
    games: int
    episodes: int
    won: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Returns the counts that sft.json records."""
        return {"split": self.split, "digest": self.digest, "games": self.games, "episodes": self.episodes,
                "won": self.won, "rows": len(self.examples), "seconds": round(self.seconds, 1)}


def cold_start(
    config: Config, out: Path, *, minutes: float, continue_from: Path | None = None, report: Report = print,
    passing: Report | None = None,
) -> Path:
    """Trains for `minutes` on new demonstrations. Writes the model, the tokenizer and, last, sft.json into `out`.

    Training starts from `continue_from` (with other demonstrations than the first time), else from model.path, else
    from a new tokenizer and a new model. Only training games are played. `passing` (if None, `report`) takes lines
    about the progress. Raises UserError if game data is missing or the model path holds no model.
    """
    import torch

    from envservice.registry import find_spec, find_teacher, make_template
    from learner.cold_start.sft import Budget, train
    from learner.cold_start.sft_data import encode

    passing = passing or report
    path = continue_from or config.model.path
    if path is not None and not (path / "config.json").exists():
        raise UserError(f"{path} holds no model", "give model.path a Hugging Face folder")
    seed = seed_for(config.seed, "sft", "start" if continue_from is None else "more")
    spec, template, teacher = find_spec(config.env.name), make_template(config.env), find_teacher(config.env)
    shown = demonstrations(config, spec.open(config.env), teacher, template, seed=seed, report=passing)
    report(f"demonstrations: {shown.episodes} episodes on {shown.games} training games, "
           f"{shown.won / max(1, shown.episodes):.0%} won, {shown.seconds:.0f} s")
    model, tokenizer = _start(config, path, shown.examples, spec, report)
    max_tokens = config.rollout.max_prompt_tokens + config.rollout.max_response_tokens
    chat = chat_format(tokenizer, config.model) if template.chat else None
    rows = encode(tokenizer, shown.examples, chat=chat, max_tokens=max_tokens, stops=spec.stops)
    report(f"training {sum(w.numel() for w in model.parameters()):,} weights for {minutes:.1f} min "
           f"on {len(rows):,} demonstrated steps of {sum(len(r.ids) for r in rows) / len(rows):.0f} tokens")
    threads = torch.get_num_threads()
    torch.set_num_threads(config.learner.threads)
    progress = train(
        model, rows, config.sft, budget=Budget(minutes=minutes), pad_id=_pad_id(tokenizer), seed=seed,
        muon=config.model.path is None, report=lambda now: _tell(passing, now, minutes))
    torch.set_num_threads(threads)
    _tell(report, progress, minutes)
    _save(model, tokenizer, out)
    facts = {
        "format": FORMAT, "minutes": minutes, "continued_from": str(continue_from) if continue_from else None,
        "vocabulary": len(tokenizer), "parameters": sum(w.numel() for w in model.parameters()),
        "demonstrations": shown.as_dict(), "training": progress.as_dict(),
    }
    (out / "sft.json").write_text(json.dumps(facts, indent=1) + "\n")
    return out


def demonstrations(
    config: Config, environment: Environment, teacher: Teacher, template: PromptTemplate, *, seed: int, report: Report
) -> Demonstrations:
    """Plays sft.demos_per_game episodes of every training game. Examples are the steps of won episodes without noise.

    Every second episode is played in disguise (other names for objects), if the environment's teacher offers that.
    """
    from learner.cold_start.sft_data import Example
    from rollout.demonstrations import demonstrate

    start = reported = time.monotonic()
    pace = Pace()
    split = environment.training_splits()[0]
    tasks = environment.tasks(split)
    examples: list[Example] = []
    episodes = won = 0
    for task in tasks:
        for k in range(config.sft.demos_per_game):
            shown = demonstrate(environment, task, teacher=teacher, template=template, seed=seed_for(seed, k),
                                sft=config.sft, max_steps=config.env.max_steps, disguised=k % 2 == 1)
            episodes, won = episodes + 1, won + shown.won
            steps = [step for step in shown.steps if step.train and shown.won]
            examples.extend(Example(prompt=step.prompt_text, response=step.response_text) for step in steps)
            if time.monotonic() - reported > _REPORT_SECONDS:
                reported = time.monotonic()
                report(pace.at("demonstrations:", episodes, config.sft.demos_per_game * len(tasks), "episodes"))
    seconds = time.monotonic() - start
    return Demonstrations(examples=examples, split=split, digest=environment.digest(split), games=len(tasks),
                          episodes=episodes, won=won, seconds=seconds)


def _start(
    config: Config, path: Path | None, examples: list[Example], spec: EnvironmentSpec, report: Report
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Returns the model to train and its tokenizer: those at `path`, or new ones if `path` is None."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    from envservice.registry import find_teacher
    from learner.cold_start.scratch_model import scratch_model
    from learner.cold_start.tokenizer import train_tokenizer

    disable_progress_bar()
    if path is not None:
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype="float32", local_files_only=True, trust_remote_code=False)
        return model, AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    stride = max(1, 2 * len(examples) // TOKENIZER_TEXTS)
    texts = (text for one in examples[::stride] for text in (one.prompt, one.response))
    tokenizer = train_tokenizer(texts, spec.stops, find_teacher(config.env).names)
    report(f"tokenizer: {len(tokenizer)} tokens")
    positions = config.rollout.max_prompt_tokens + config.rollout.max_response_tokens
    seed = seed_for(config.seed, "weights")
    return scratch_model(config.model, tokenizer, max_positions=positions, seed=seed), tokenizer


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    open_as_folder(out)


def _pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return int(pad or 0)  # pyright: ignore[reportArgumentType]  # a list only for several tokens


def _tell(report: Report, now: SftProgress, minutes: float) -> None:
    left = f", about {span(60 * minutes - now.seconds)} left" if now.seconds < 60 * minutes else ""
    report(f"cold start {now.seconds / 60:4.1f} of {minutes:.1f} min: {now.updates} updates, {now.epochs:.1f} epochs, "
           f"{now.rows / max(now.seconds, 1e-9):.0f} rows/s, loss {now.loss_response:.2f} per answer{left}")
