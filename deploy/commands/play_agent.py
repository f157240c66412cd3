"""A trained agent that plays one game in this process, for people to watch: transformers, no vLLM, no server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envservice.base import Outcome, ParsedAction, Session, Turn
from rollout.prompt_renderer import PromptRenderer, load_text
from services.config.tree import Config

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Model, tokens and prompt; `temperature` as in evaluations."""

    model: PreTrainedModel
    text: PromptRenderer
    temperature: float
    max_tokens: int

    def answer(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> tuple[str, ParsedAction]:
        """The sampled answer in full, and what the environment will receive of it."""
        import torch

        prompt = torch.tensor([self.text.prompt(first, turns, now)])
        model: Any = self.model
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=0,
                             temperature=self.temperature, max_new_tokens=self.max_tokens,
                             eos_token_id=list(self.text.stop_ids), pad_token_id=self.text.stop_ids[0])
        ids = out[0, prompt.shape[1]:].numpy()
        return str(self.text.tokenizer.decode(ids.tolist())), self.text.parse(ids)


def load_agent(config: Config, model: Path, *, seed: int) -> Agent:
    """The agent of a Hugging Face folder, playing as `config` says."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(seed)
    return Agent(
        model=AutoModelForCausalLM.from_pretrained(model, local_files_only=True, trust_remote_code=False).eval(),
        text=load_text(str(model), config.env),
        temperature=config.eval.temperature, max_tokens=config.rollout.max_response_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMove:
    """One step of the agent: its answer, the action in it, and what came of it."""

    answer: str
    action: str
    outcome: Outcome


def moves(agent: Agent, session: Session, first: Outcome, max_steps: int) -> Iterator[AgentMove]:
    """Plays from `first`, which reset gave, to the end or for `max_steps`."""
    turns: list[Turn] = []
    now = first
    while not now.done and len(turns) < max_steps:
        answer, parsed = agent.answer(first, turns, now)
        after = session.step(parsed.action)
        turns.append(Turn(observation=now.observation, action=parsed.action,
                          admissible=now.admits(parsed.action)))
        yield AgentMove(answer=answer, action=parsed.action, outcome=after)
        now = after
