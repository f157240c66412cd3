"""The policy that the cold start is training, as a player: it answers a batch of prompts, in the training process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_BATCH = 64
"""Prompts that are answered at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Student:
    """Samples answers. Calls change neither the weights nor torch's own random state."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    stops: Sequence[str]
    """Tags that end an answer."""
    temperature: float
    max_prompt_tokens: int
    max_response_tokens: int

    def answers(self, prompts: Sequence[str], *, seed: int) -> list[str]:
        """Returns an answer to each prompt, as the model reads it. A prompt that is too long gets an empty answer."""
        import torch

        ids: list[list[int]] = self.tokenizer(list(prompts), add_special_tokens=False)["input_ids"]  # pyright: ignore[reportAssignmentType]
        found = [""] * len(ids)
        fitting = sorted((at for at in range(len(ids)) if len(ids[at]) <= self.max_prompt_tokens),
                         key=lambda at: len(ids[at]))
        training = self.model.training
        self.model.eval()
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.manual_seed(seed)
            for start in range(0, len(fitting), _BATCH):
                batch = fitting[start : start + _BATCH]
                for at, answer in zip(batch, self._sample([ids[at] for at in batch]), strict=True):
                    found[at] = answer
        self.model.train(training)
        return found

    def _sample(self, rows: list[list[int]]) -> list[str]:
        """Returns the answers to a batch of prompts, which are padded on the left."""
        import torch

        vocabulary = self.tokenizer.get_vocab()
        end: Any = self.tokenizer.eos_token_id
        width = max(map(len, rows))
        made: Any = self.model.generate(  # pyright: ignore[reportCallIssue]  # a mixin's method behind a Tensor type
            torch.tensor([[end] * (width - len(row)) + row for row in rows]),
            attention_mask=torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]),
            do_sample=True, temperature=self.temperature, top_k=0, top_p=1.0, pad_token_id=end,
            max_new_tokens=self.max_response_tokens,
            eos_token_id=[end, *(vocabulary[stop] for stop in self.stops if stop in vocabulary)])
        return self.tokenizer.batch_decode(made[:, width:], skip_special_tokens=True)
