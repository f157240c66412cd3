"""PPO's critic: a value for each response token, and the advantages computed from them.

The value model is the policy's initial weights with a scalar head on the last hidden state. A token's value is taken at
the position that predicts the token, so it depends on the prompt and the tokens before. Values stay within one row: the
row's score is the reward of its last token, and nothing is bootstrapped from one turn of an episode to the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from learner.credit.ppo import PpoOptions
from learner.credit.registry import options_of
from learner.losses import token_gae, value_loss
from learner.memory import Layout
from learner.model import empty_policy, predicting_states
from learner.packing import Pack
from learner.rank_group import RankGroup
from learner.sharding import shard
from learner.trainee import Trainee
from services.config.tree import Config, LearnerSection

EPSILON = 1e-8


class Judgement(NamedTuple):
    """The critic's values, returns and advantages of one pack, float32 [T] each."""

    values: Tensor
    """Values under the weights before the step."""
    returns: Tensor
    """Regression targets of the values: advantage before whitening, plus value."""
    advantages: Tensor
    """Advantages, whitened over the tokens of the whole batch on all ranks."""


class ValueModel(nn.Module):
    """Maps a pack to values, float32 [T]. Its head starts at zero, so the first advantages are just the scores."""

    def __init__(self, body: nn.Module, hidden: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(hidden, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, pack: Pack) -> Tensor:
        values = self.head(predicting_states(self.body, pack).float())[:, 0]
        return values.clone()  # not a view: FSDP's backward hook is lost on a view


@dataclass(slots=True, kw_only=True)
class Critic:
    """The value model of one rank, its judgement of a batch, and its loss."""

    trainee: Trainee[ValueModel]
    gang: RankGroup
    section: LearnerSection

    @torch.no_grad()
    def judge(self, packs: Sequence[Pack]) -> list[Judgement]:
        """Returns the judgements of this rank's packs of a learner step. A collective: whitening uses all ranks."""
        credit: PpoOptions = options_of(self.section.credit)
        values = [self.trainee.model(p) for p in packs]
        raw = [token_gae(v.double(), p.row, p.advantages.double(), gamma=credit.gamma, lam=credit.lam)
               for p, v in zip(packs, values, strict=True)]
        mean, spread = self._moments([a for p, a in zip(packs, raw, strict=True) if p.weight])
        return [Judgement(values=v, returns=(a + v).float(), advantages=((a - mean) / spread).float())
                for v, a in zip(values, raw, strict=True)]

    def _moments(self, parts: list[Tensor]) -> tuple[float, float]:
        """Returns mean and sqrt(unbiased variance + ε) over all tokens of all ranks."""
        count, total = self.gang.reduce([float(sum(map(len, parts))), sum(float(part.sum()) for part in parts)])
        mean = total / count
        (squares,) = self.gang.reduce([sum(float(((part - mean) ** 2).sum()) for part in parts)])
        return mean, math.sqrt(squares / max(count - 1, 1) + EPSILON)

    def loss(self, pack: Pack, judgement: Judgement, *, num_tokens: int) -> Tensor:
        """Returns this pack's part of the minibatch's clipped value loss. num_tokens counts all ranks."""
        return value_loss(self.trainee.model(pack), judgement.values, judgement.returns,
                          clip=self.section.critic.value_clip, num_tokens=num_tokens)


def make_critic(config: Config, model_path: Path, gang: RankGroup, layout: Layout) -> Critic:
    """Returns the critic made from the weights in `model_path`. Raises UserError if the folder holds no model."""
    section, (policy, weights) = config.learner, empty_policy(model_path)
    model = ValueModel(policy.body, policy.hf.config.get_text_config().hidden_size)
    model.head.to(gang.device)
    mesh = gang.mesh_of(layout.shards)
    fully_shard(model.head, mesh=mesh)  # always in float32: returns need more than 8 bits
    shard(model, model.body, weights, mesh, layout=layout, half=config.model.dtype == "bfloat16")
    return Critic(trainee=Trainee(model, section, lr=section.critic.lr), gang=gang, section=section)
