"""Text to tokens and back, for one model and one prompt template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from envservice.base import Outcome, ParsedAction, PromptTemplate, Turn
from envservice.registry import find_spec, make_template
from envservice.text.response_format import ACTION_END
from envservice.text.tool_calls import TAGS
from rollout.judge_prompt import Verdict, corrected, mistakes_question, question, read_verdict, split_answer
from services.answer_end import answer_end, generation_ends
from services.chat import ChatFormat, TokenUnknown, chat_format, check_chat, tokens
from services.config.tree import EnvSection, ModelSection
from services.files import read_json
from services.tokenizer import first_tokens, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRenderer:
    """Renders prompts as token ids for the model, and parses answers into actions for the environment."""

    template: PromptTemplate
    tokenizer: PreTrainedTokenizerBase
    stops: tuple[str, ...] = (ACTION_END,)
    """Tags that end an answer."""
    end_ids: tuple[int, ...] = ()
    """Further tokens that end an answer, from the model's generation config."""
    chat: ChatFormat | None = None
    """How messages become text. None: the tokenizer's chat template as it is."""
    vocabulary: int | None = None
    """Number of tokens that the model has embeddings for. None: all of the tokenizer."""
    stop_ids: tuple[int, ...] = field(init=False)
    """Tokens that end an answer."""
    stop_texts: tuple[str, ...] = field(init=False)
    """Tags of several tokens that end an answer to the environment's prompts."""
    opening: str = field(init=False)
    """The thought that the chat template itself opens before every answer. The parser reads it with the answer."""
    longest_token: int = field(init=False)
    """Characters of the longest token."""
    _beyond: dict[int, str] = field(init=False)
    """Tokens of the tokenizer that the model does not know, by id."""
    _first: list[int] = field(init=False)
    """Tokens with which raw text begins."""
    _hidden: frozenset[int] | None = field(init=False)
    """Special tokens to leave out of decoded answers if some tag is special too. None: no tag is."""

    def __post_init__(self) -> None:
        tags = frozenset({*TAGS, *self.stops})
        chat = self.chat or ChatFormat(tokenizer=self.tokenizer, tags=tags)
        object.__setattr__(self, "chat", chat)
        end = answer_end(self.tokenizer, chat, stops=self.stops, ends=self.end_ids)
        object.__setattr__(self, "stop_ids", end.stop_ids)
        object.__setattr__(self, "stop_texts", end.stop_texts)
        object.__setattr__(self, "opening", chat.opening() if self.template.chat else "")
        vocabulary = self.tokenizer.get_vocab()
        object.__setattr__(self, "longest_token", max(map(len, vocabulary)))
        object.__setattr__(self, "_beyond", {} if self.vocabulary is None else {
            number: token for token, number in vocabulary.items() if number >= self.vocabulary})
        object.__setattr__(self, "_first", first_tokens(self.tokenizer))
        object.__setattr__(self, "_hidden", _hidden_ids(self.tokenizer, tags))

    def prompt(self, first: Outcome, turns: Sequence[Turn], now: Outcome, correction: str = "") -> list[int]:
        """Returns the prompt of the turn after `turns`, as token ids. `correction`: instructions that it carries."""
        return self._tokens(self._turn(first, turns, now, correction))

    def question(self, first: Outcome, turns: Sequence[Turn], now: Outcome, action: str,
                 correction: str = "") -> list[int]:
        """Returns the prompt that asks whether `action` is good at the turn after `turns`, as token ids."""
        prompt = self._turn(first, turns, now, correction)
        return self._tokens(question(prompt, action, chat=self.template.chat, stops=self.stops))

    def mistakes_question(self, critiques: Sequence[tuple[str, str]]) -> list[int]:
        """Returns the prompt that asks for a summary of mistakes (judge_prompt.py), as token ids."""
        return self._tokens(mistakes_question(critiques, chat=self.template.chat, stops=self.stops))

    def _turn(self, first: Outcome, turns: Sequence[Turn], now: Outcome, correction: str) -> str:
        return corrected(self.template.render(first, turns, now), correction, chat=self.template.chat)

    def _tokens(self, text: str) -> list[int]:
        if not self.template.chat:
            return [*self._first, *self.encode(text)]
        assert self.chat is not None
        return self.encode(self.chat.prompt(text))

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a complete prompt. Control tokens in texts of others must have been cut from it.

        Raises TokenUnknown for a token without an embedding, at which the sampler's process would end. Examples are
        `<image_soft_token>` in a text for Gemma 3's smallest model, and a token that was added to the tokenizer alone.
        """
        ids = tokens(self.tokenizer, text)
        if self._beyond and (beyond := self._beyond.keys() & ids):
            raise TokenUnknown(f"the prompt holds {self._beyond[min(beyond)]}, a token of the tokenizer beyond the "
                               f"{self.vocabulary} that the model knows: resize its embeddings, or keep the token out")
        return ids

    def parse(self, response_ids: np.ndarray) -> ParsedAction:
        """Returns the action in an answer. `response_ids` [R]: exactly as sampled."""
        return self.template.parse(self.opening + self.decode(response_ids.tolist()))

    def ends(self, response_ids: np.ndarray) -> bool:
        """Returns whether an answer is complete, and was not cut at its limit. `response_ids` [R]."""
        if int(response_ids[-1]) in self.stop_ids:
            return True
        return bool(self.stop_texts) and any(tag in self.decode(response_ids.tolist()) for tag in self.stop_texts)

    def verdict(self, response_ids: np.ndarray) -> Verdict:
        """Returns the verdict in an answer to `question`. `response_ids` [R]."""
        return read_verdict(self.opening + self.decode(response_ids.tolist()), stops=self.stops)

    def split_answer(self, response_ids: np.ndarray) -> tuple[str, str]:
        """Returns the thought of an answer to a question, and its text, each as one line. `response_ids` [R]."""
        return split_answer(self.opening + self.decode(response_ids.tolist()), stops=self.stops)

    def decode(self, ids: list[int]) -> str:
        """Returns the text of an answer without special tokens; tags stay, even those that are special tokens."""
        if self._hidden is None:
            return str(self.tokenizer.decode(ids, skip_special_tokens=True))
        return str(self.tokenizer.decode([i for i in ids if i not in self._hidden]))


def load_text(model: str, env: EnvSection, settings: ModelSection | None = None) -> PromptRenderer:
    """Returns the renderer of a Hugging Face folder's tokenizer, with the environment's prompt and tags.

    Raises UserError if the prompt needs a chat template and the tokenizer has none that works.
    """
    template, tokenizer = make_template(env), load_tokenizer(model)
    stops = find_spec(env.name).stops
    chat = chat_format(tokenizer, settings or ModelSection(), {*TAGS, *stops})
    if template.chat:
        check_chat(chat, Path(model))
    return PromptRenderer(template=template, tokenizer=tokenizer, stops=stops, chat=chat,
                          end_ids=generation_ends(Path(model)), vocabulary=vocabulary_of(Path(model)))


def vocabulary_of(folder: Path) -> int | None:
    """Returns the vocabulary size of the model in a folder, or None if its config does not have one at the top."""
    path = folder / "config.json"
    size = read_json(path, dict[str, Any]).get("vocab_size") if path.exists() else None
    return size if isinstance(size, int) else None


def _hidden_ids(tokenizer: PreTrainedTokenizerBase, tags: frozenset[str]) -> frozenset[int] | None:
    """Returns the special tokens that are not tags, or None if no tag is a special token."""
    special = {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    if not tags & set(special.values()):
        return None
    return frozenset(i for i, text in special.items() if text not in tags)
