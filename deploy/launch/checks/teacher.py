"""Checks the teacher of distillation before anything starts: its folder, its tokenizer and the loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from deploy.launch.checks.model_folder import check_model, check_weights, described_sizes
from learner.model.family import check_family
from services.config.tree import Config
from services.errors import UserError
from services.tokenizer import load_tokenizer
from services.weights.headers import read_tokenizer

_KEY = "learner.distill.teacher"


def check_teacher(config: Config) -> Iterator[UserError]:
    """Yields a UserError for a teacher that cannot score the tokens of this config's policy."""
    teacher, model = config.learner.distill.teacher, config.model.path
    if teacher is None:
        return
    if config.learner.loss.ratio != "token":
        yield UserError(f"{_KEY} gives each token its own advantage, and learner.loss.ratio="
                        f"{config.learner.loss.ratio} has one ratio per action", "set learner.loss.ratio=token")
    if model is None:
        yield UserError(f"{_KEY}={teacher} must have the policy's tokenizer, and the cold start of a model made from "
                        "scratch makes a new one",
                        "set model.path to a model with the teacher's tokenizer, such as an earlier run's cold start")
    if not teacher.is_dir():
        yield UserError(f"there is no model at {_KEY}={teacher}", "name a Hugging Face folder")
        return
    try:
        check_model(teacher)
        check_family(teacher)
        check_weights(teacher)
    except UserError as error:
        yield UserError(f"{_KEY}: {error.what}", "name a complete Hugging Face folder")
        return
    row = config.rollout.row_tokens
    longest = described_sizes(teacher).get("max_position_embeddings", row)
    if row > longest:
        yield UserError(f"prompt and response may take {row} tokens, and {_KEY}={teacher} has {longest} positions",
                        "lower rollout.max_prompt_tokens, or choose another teacher")
    if model is not None and model.is_dir():
        yield from _tokenizer(teacher, model)


def _tokenizer(teacher: Path, model: Path) -> Iterator[UserError]:
    """Yields a UserError if the two models read different tokens."""
    theirs, ours = map(_vocabulary, (teacher, model))
    odd = min((token for token in theirs.keys() | ours.keys() if theirs.get(token) != ours.get(token)),
              key=lambda token: (theirs.get(token, len(theirs)), token), default=None)
    if odd is not None:
        yield UserError(f"{_KEY}={teacher} has another tokenizer than model.path={model}: the token {odd!r:.40} is "
                        f"{_number(theirs.get(odd))} there and {_number(ours.get(odd))} here",
                        "choose a teacher of the same family")
        return
    scores, samples = (described_sizes(folder).get("vocab_size", 0) for folder in (teacher, model))
    if scores < samples:
        yield UserError(f"{_KEY}={teacher} scores {scores} tokens, and model.path={model} may sample {samples}",
                        "choose a teacher whose config.json has as large a vocab_size")


def _vocabulary(folder: Path) -> Mapping[str, int]:
    """Returns the number of each token. Raises UserError if the tokenizer cannot be read."""
    if (file := folder / "tokenizer.json").exists():
        return read_tokenizer(file).get_vocab()
    try:
        return load_tokenizer(folder).get_vocab()
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"the tokenizer of {folder} cannot be read ({str(error).splitlines()[0]})",
                        "copy the model again") from None


def _number(token: int | None) -> str:
    return "no token" if token is None else f"number {token}"
