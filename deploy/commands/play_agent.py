"""A trained agent that plays one game in this process, with transformers and without vLLM or a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envservice.base import Outcome, ParsedAction, Session, Turn, outcome_of
from rollout.prompt_renderer import PromptRenderer, load_text
from services.config.tree import Config
from services.errors import UserError, described

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A model with its tokenizer and prompt template. It samples at `temperature`."""

    model: PreTrainedModel
    text: PromptRenderer
    temperature: float
    max_tokens: int

    def answer(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> tuple[str, ParsedAction]:
        """Samples an answer. Returns its full text, and the action for the environment."""
        import torch

        prompt = torch.tensor([self.text.prompt(first, turns, now)])
        model: Any = self.model
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=0,
                             temperature=self.temperature, max_new_tokens=self.max_tokens,
                             eos_token_id=list(self.text.stop_ids), pad_token_id=self.text.stop_ids[0])
        ids = out[0, prompt.shape[1]:].numpy()
        return str(self.text.tokenizer.decode(ids.tolist())), self.text.parse(ids)


def load_agent(config: Config, model: Path, *, seed: int) -> Agent:
    """Loads the agent of a Hugging Face folder, which plays by `config`. Raises UserError if the folder is damaged."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    from learner.model.loading import plain_model

    disable_progress_bar()
    torch.manual_seed(seed)
    try:
        policy = plain_model(model, "auto").eval()
        text = load_text(str(model), config.env, config.model)
    except UserError:
        raise
    except Exception as error:  # transformers has no type for a file that is not what it should be
        raise UserError(f"the model at {model} cannot be loaded ({described(error)})", "copy it again") from error
    return Agent(model=policy, text=text, temperature=config.eval.temperature,
                 max_tokens=config.rollout.max_response_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMove:
    """One turn of the agent: its answer, the action in it, and the outcome."""

    answer: str
    action: str
    outcome: Outcome


def moves(agent: Agent, session: Session, first: Outcome, max_steps: int) -> Iterator[AgentMove]:
    """Plays from `first`, the outcome of the reset, to the end or for `max_steps`."""
    turns: list[Turn] = []
    now = first
    while not now.done and len(turns) < max_steps:
        answer, parsed = agent.answer(first, turns, now)
        after = outcome_of(session.step(parsed.action), "step")
        turns.append(Turn(observation=now.observation, action=parsed.action,
                          admissible=now.admits(parsed.action), kept=parsed.kept))
        yield AgentMove(answer=answer, action=parsed.action, outcome=after)
        now = after
