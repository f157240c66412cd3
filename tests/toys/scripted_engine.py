"""An engine with scripted answers, to test the code around it."""

from __future__ import annotations

import asyncio

import numpy as np

from rollout.engine.engine import Sample
from rollout.prompt_renderer import PromptRenderer
from services.records import Version, VersionSpan


class ScriptedEngine:
    """Answers with the next of `answers`, texts or lists of ids, and ends each with the stop token. `asked` is all
    that was read and sampled."""

    def __init__(self, text: PromptRenderer, answers) -> None:
        self._text, self._answers, self._end = text, iter(answers), text.tokenizer.eos_token_id
        self.asked: list[tuple[list[int], list[int]]] = []
        self.paused = False

    async def sample(self, prompt_ids, *, stop_token_ids=(), **_):
        await asyncio.sleep(0)  # as a real one, it lets other calls run
        answer = next(self._answers)
        ids = [*(self._text.tokenizer.encode(answer, add_special_tokens=False) if isinstance(answer, str) else answer),
               self._end]
        end = next((place for place, token in enumerate(ids) if token in stop_token_ids), len(ids) - 1)
        ids = ids[:end + 1]
        self.asked.append((list(prompt_ids), ids))
        rng = np.random.default_rng(len(self.asked))
        return Sample(ids=np.array(ids, np.int32), logprobs=-rng.random(len(ids), np.float32), finished="stop",
                      spans=[VersionSpan(version=Version(incarnation=1, step=0), start=0, end=len(ids))])
