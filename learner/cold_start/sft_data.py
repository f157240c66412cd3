"""Demonstrated steps as token rows, and their order in training.

Legend: P prompt tokens, R response tokens, L = P + R, B rows of a batch, T longest L of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from learner.cold_start.scratch_model import STOP
from services.answer_end import AnswerEnd, answer_end
from services.chat import CUT, THINK, THINK_END, ChatFormat, ChatRefused, Message, tokens
from services.errors import UserError
from services.files import replacing
from services.tokenizer import first_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORE = -100
ROWS = "rows.npz"
"""File of the rows that the learner's ranks train on, in a folder that they share with the driver."""
DEMONSTRATIONS = "demonstrations.npz"
"""File of the rows that learner.imitation imitates, in the run's folder. The driver writes it before RL."""
PROGRESS = "progress.json"
"""File of the heartbeats and the progress of rank 0, in the folder of ROWS."""
AT_ONCE = 4096
"""Examples that are encoded at once. A tokenizer's result takes a hundred times the memory of its tokens."""
_WINDOW = 32
"""Number of batches within which rows are sorted by length: enough for little padding, few enough to stay random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One demonstrated step: the prompt of the policy and the answer that it should give."""

    prompt: str | Sequence[Message]
    """The text of one user message, or the conversation before the answer."""
    response: str
    learn_prompt: bool = True
    """Whether the loss on prompts includes this one. It must not if the prompt has an answer that is not to be learned.
    """
    tools: tuple[Mapping[str, Any], ...] = ()
    """Tools that a conversation's prompt shows, in OpenAI's form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One example as tokens."""

    ids: np.ndarray
    """int32 [L], prompt then response."""
    prompt_tokens: int
    """P: positions [P, L) are the response."""
    learn_prompt: bool = True
    """Whether the loss on prompts includes positions [0, P)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows padded on the right. Causal attention never looks there, so no mask is needed."""

    ids: np.ndarray
    """int64 [B, T]."""
    targets: np.ndarray
    """int64 [B, T]: the next token; IGNORE at positions without one and where it is not learned."""
    is_response: np.ndarray
    """bool [B, T]: the target belongs to the response."""


def encode(
    tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example], *, chat: ChatFormat | None, max_tokens: int,
    end: AnswerEnd | None = None,
) -> list[TokenRow]:
    """Returns rows of at most `max_tokens`. Longer examples are left out: a cut prompt would teach wrong answers.

    With `chat` a prompt is one user message in that format or a conversation. If the format itself opens the thought,
    the answer does not open it again. Without `chat`, prompts are raw text. `end`: the end of answers; None: that of
    `tokenizer` and `chat`, with the tag `</action>`. Raises UserError for a conversation that the template refuses.
    """
    opening = "" if chat is None else chat.opening()
    thinks = bool(opening) and THINK_END not in opening
    end = end or answer_end(tokenizer, chat, stops=(STOP,))
    first = first_tokens(tokenizer) if chat is None else []
    rows: list[TokenRow] = []
    for start in range(0, len(examples), AT_ONCE):
        part = examples[start : start + AT_ONCE]
        responses = [one.response.removeprefix(THINK) if thinks else one.response for one in part]
        prompt_ids = _ids(tokenizer, [_text(example, chat) for example in part])
        rows += [
            TokenRow(ids=np.asarray([*first, *prompt, *ids, *end.after(response)], dtype=np.int32),
                     prompt_tokens=len(first) + len(prompt), learn_prompt=example.learn_prompt)
            for example, prompt, response, ids in zip(part, prompt_ids, responses, _ids(tokenizer, responses),
                                                      strict=True)
        ]
    return [row for row in rows if len(row.ids) <= max_tokens]


def _text(example: Example, chat: ChatFormat | None) -> str:
    if chat is None:
        assert isinstance(example.prompt, str), "a conversation needs a chat format"
        return example.prompt
    if isinstance(example.prompt, str):
        return chat.prompt(example.prompt)
    try:
        return chat.text(example.prompt, example.tools)
    except ChatRefused as error:
        raise UserError(f"the model's chat template refuses a conversation of sft.file ({error})",
                        "change the conversations, or set model.chat_template") from None


def _ids(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    """Returns the tokens of each text. Most texts are encoded in one call, which is fast."""
    encoded: Any = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    return [tokens(tokenizer, text) if CUT in text else ids for text, ids in zip(texts, encoded, strict=True)]


def drawn(rows: Sequence[TokenRow], *, batch_rows: int, seed: int) -> Iterator[list[TokenRow]]:
    """Yields batches without end, each of similar lengths. An epoch visits every row once, in an order from `seed`."""
    random = np.random.default_rng(seed)
    lengths = np.asarray([len(row.ids) for row in rows])
    while True:
        order = random.permutation(len(rows))
        epoch: list[np.ndarray] = []
        for start in range(0, len(order), _WINDOW * batch_rows):
            window = order[start : start + _WINDOW * batch_rows]
            window = window[np.argsort(lengths[window], kind="stable")]
            parts = [window[at : at + batch_rows] for at in range(0, len(window), batch_rows)]
            epoch.extend(parts[at] for at in random.permutation(len(parts)))
        yield from ([rows[at] for at in part] for part in epoch)


def save_rows(rows: Sequence[TokenRow], file: Path) -> None:
    """Writes rows into one file. Raises OSError."""
    with replacing(file, file.with_name(f".{file.name}.new")) as draft:
        np.savez(draft, ids=np.concatenate([row.ids for row in rows]), lengths=[len(row.ids) for row in rows],
                 prompt_tokens=[row.prompt_tokens for row in rows], learn_prompt=[row.learn_prompt for row in rows])


def load_rows(file: Path) -> list[TokenRow]:
    """Returns what `save_rows` wrote."""
    with np.load(file, allow_pickle=False) as saved:
        parts = np.split(saved["ids"], np.cumsum(saved["lengths"])[:-1])
        return [TokenRow(ids=ids, prompt_tokens=int(prompt), learn_prompt=bool(learn))
                for ids, prompt, learn in zip(parts, saved["prompt_tokens"], saved["learn_prompt"], strict=True)]


def within_budget(batch: Sequence[TokenRow], token_budget: int) -> list[list[TokenRow]]:
    """Returns the rows in consecutive parts of at most `token_budget` tokens with padding, or one row."""
    parts: list[list[TokenRow]] = []
    longest = 0
    for row in batch:
        longest = max(longest, len(row.ids))
        if parts and (len(parts[-1]) + 1) * longest <= token_budget:
            parts[-1].append(row)
        else:
            parts.append([row])
            longest = len(row.ids)
    return parts


def padded(chosen: Sequence[TokenRow], pad_id: int) -> Batch:
    """Returns the rows as one batch."""
    width = max(len(row.ids) for row in chosen)
    ids = np.full((len(chosen), width), pad_id, dtype=np.int64)
    targets = np.full((len(chosen), width), IGNORE, dtype=np.int64)
    is_response = np.zeros((len(chosen), width), dtype=bool)
    for at, row in enumerate(chosen):
        length = len(row.ids)
        ids[at, :length] = row.ids
        targets[at, : length - 1] = row.ids[1:]
        is_response[at, row.prompt_tokens - 1 : length - 1] = True
        if not row.learn_prompt:
            targets[at, : row.prompt_tokens - 1] = IGNORE
    return Batch(ids=ids, targets=targets, is_response=is_response)
