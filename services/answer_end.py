"""The end of an answer, decided in one place for imitation, for sampling, and for rows of several calls.

A chat template writes its own end after each answer in the history. So a policy has to be taught that end and sampled
up to it: with another end, the next prompt does not continue the sampled tokens, and its call starts a row of its own.

The environment's tags end its answers too. A tag that is one token is found by its number, one of several by its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.chat import ChatFormat
from services.errors import UserError
from services.files import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEnd:
    """The end of a model's answers."""

    taught: tuple[int, ...]
    """Tokens that follow the text of an answer. The last one ends it."""
    stop_ids: tuple[int, ...]
    """All tokens at which sampling ends, sorted."""
    tags: tuple[str, ...] = ()
    """Texts that are one token each and end an answer by themselves."""
    stop_texts: tuple[str, ...] = ()
    """Tags of several tokens, at which sampling ends for the environment's prompts alone. In imitation the taught end
    follows such a tag, because conversations of agents end there."""

    def after(self, answer: str) -> tuple[int, ...]:
        """Returns the tokens to teach behind the text of an answer: none if a tag ends it."""
        return () if answer.endswith(self.tags) else self.taught


def answer_end(tokenizer: Any, chat: ChatFormat | None, *, stops: Sequence[str] = (),
               ends: Sequence[int] = ()) -> AnswerEnd:
    """Returns the end of answers. `chat`: the format of conversations, or None for raw text. `stops`: tags of the
    environment. `ends`: those of the generation config (generation_ends).

    The template's end is taught, and the tokenizer's end of text where the template writes none. Raises UserError if
    there is no end at all.
    """
    vocabulary = tokenizer.get_vocab()
    named = [end for end in (tokenizer.eos_token_id, *ends) if end is not None]
    taught = (chat.end(named) if chat is not None else ()) or tuple(named[:1])
    tags = tuple(stop for stop in stops if stop in vocabulary)
    if not taught:
        raise UserError("the tokenizer has no end-of-text token, and no chat template that writes an end",
                        "name its eos_token in tokenizer_config.json")
    return AnswerEnd(taught=taught, stop_ids=tuple(sorted({*named, taught[-1], *(vocabulary[tag] for tag in tags)})),
                     tags=tags, stop_texts=tuple(stop for stop in stops if stop not in vocabulary))


def generation_ends(folder: Path) -> tuple[int, ...]:
    """Returns the tokens that end an answer by the model's generation config: Llama 3 and Gemma name several there."""
    path = folder / "generation_config.json"
    ends = read_json(path, dict[str, Any]).get("eos_token_id") if path.exists() else None
    return tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,)
