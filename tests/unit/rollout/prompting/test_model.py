"""Our own sampler as a model that is asked: where its answers end."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer

from envservice.text.plain_prompts import PLAIN
from rollout.engine.engine import Sample
from rollout.prompt_renderer import PromptRenderer
from rollout.prompting.model import SampledModel
from services.config.tree import RolloutSection
from services.errors import UserError


class Recorder:
    """An engine that keeps what it is asked with."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def sample(self, prompt: list[int], **asked: Any) -> Sample:
        self.asked.append(asked)
        return cast("Sample", type("Answer", (), {"ids": np.array(prompt[:1])}))


@pytest.mark.parametrize(("tags", "ids", "texts"), [(True, ["<|end|>", "."], ("</act>",)),
                                                    (False, ["<|end|>"], ())])
async def test_an_answer_ends_at_the_tags_of_training_only_in_the_prompt_of_training(
        tags: bool, ids: list[str], texts: tuple[str, ...]):
    """In the game `guess` a full stop ends an answer: thoughts of ReAct ended before their action, plans after one
    sentence, and a tag of several tokens ended nothing."""
    engine, tokenizer = Recorder(), byte_tokenizer()
    text = PromptRenderer(template=PLAIN["full"](2), tokenizer=tokenizer, stops=(".", "</act>"))
    model = SampledModel(engine=cast("Any", engine), text=text, limits=RolloutSection(), temperature=1.0, tags=tags)
    await model.ask([{"role": "user", "content": "hello"}], seed=0)
    (asked,) = engine.asked
    assert sorted(asked["stop_token_ids"]) == sorted(tokenizer.convert_tokens_to_ids(ids))
    assert asked["stop_texts"] == texts


async def test_a_conversation_that_the_template_refuses_is_refused_in_one_line():
    """Else the evaluation would end with a traceback."""
    tokenizer = byte_tokenizer()
    text = PromptRenderer(template=PLAIN["full"](2), tokenizer=tokenizer)
    model = SampledModel(engine=cast("Any", None), text=text, limits=RolloutSection(), temperature=1.0, tags=False)
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(UserError, match=r"cannot be written for this model \(roles must alternate\); set model"):
        await model.ask([{"role": "user", "content": "hello"}], seed=0)
