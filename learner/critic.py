"""PPO's critic: a value for each response token or for each turn, and the advantages computed from them.

The value model is the policy's initial weights with a scalar head on the last hidden state. A token's value is taken at
the position that predicts the token, so it depends on the prompt and the tokens before. Token values stay within one
row: the row's score is the reward of its last token, and nothing is bootstrapped from one turn of an episode to the
next. A turn's value is that of its first response token, so it depends only on the prompt. The turns of an episode are
bootstrapped from one another, and all tokens of a turn have its advantage (Turn-PPO, arXiv 2512.17008).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from learner.credit.ppo import PpoOptions
from learner.credit.registry import options_of
from learner.losses import Mean, first_tokens, token_gae, turn_gae, value_loss
from learner.model.memory import Layout
from learner.model.policy import empty_policy, predicting_states
from learner.model.sharding import shard
from learner.model.trained_model import TrainedModel
from learner.rank_group import RankGroup
from learner.rows.packing import Pack, Rows
from services.config.tree import LearnerSection

EPSILON = 1e-8


class CriticOutput(NamedTuple):
    """The critic's values, returns and advantages of one pack, float32 [T] each."""

    values: Tensor
    """Values under the weights before the step."""
    returns: Tensor
    """Regression targets of the values: advantage before whitening, plus value. For turns, every token of a row
    has the target of its turn."""
    advantages: Tensor
    """Advantages, whitened over the tokens or turns of the batch on all ranks."""


class ValueModel(nn.Module):
    """Maps a pack to values, float32 [T]. Its head starts at zero, so the first values are 0."""

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
    """The value model of one rank: values and advantages of a batch, and the value loss."""

    trained_model: TrainedModel[ValueModel]
    rank_group: RankGroup
    section: LearnerSection

    @property
    def _credit(self) -> PpoOptions:
        return options_of(self.section.credit)

    @property
    def _turns(self) -> bool:
        """Whether turns have values, each read at the first token of its answer."""
        return self._credit.values == "turns"

    @torch.no_grad()
    def outputs(self, packs: Sequence[Pack], rows: Rows) -> list[CriticOutput]:
        """Returns the output for each of this rank's packs of a learner step. A collective: whitening uses all ranks.

        `rows`: all rows of the step.
        """
        credit, values = self._credit, [self.trained_model.model(p) for p in packs]
        if self._turns:
            return self._turn_outputs(packs, values, rows)
        raw = [token_gae(v.double(), p.row, p.advantages.double(), gamma=credit.gamma, lam=credit.lam)
               for p, v in zip(packs, values, strict=True)]
        mean, spread = self._moments([a for p, a in zip(packs, raw, strict=True) if p.weight])
        return [CriticOutput(values=v, returns=(a + v).float(), advantages=((a - mean) / spread).float())
                for v, a in zip(values, raw, strict=True)]

    def _turn_outputs(self, packs: Sequence[Pack], values: Sequence[Tensor], rows: Rows) -> list[CriticOutput]:
        mine, credit = np.zeros(len(rows)), self._credit
        for p, v in zip(packs, values, strict=True):
            if p.weight:
                mine[p.members] = v[first_tokens(p.row, p.num_rows)].double().cpu()
        before = torch.tensor(self.rank_group.all_reduce(mine.tolist()), dtype=torch.float64)
        raw = turn_gae(before, torch.from_numpy(rows.advantages), torch.from_numpy(rows.ends),
                       gamma=credit.gamma, lam=credit.lam)
        spread = math.sqrt(float(raw.var(correction=min(1, len(raw) - 1))) + EPSILON)
        whitened = (raw - raw.mean()) / spread
        outputs: list[CriticOutput] = []
        for p, v in zip(packs, values, strict=True):
            members = torch.from_numpy(p.members)
            returns, advantages = ((of[members].float().to(v.device))[p.row] for of in (raw + before, whitened))
            outputs.append(CriticOutput(values=v, returns=returns, advantages=advantages))
        return outputs

    def explained_variance(self, packs: Sequence[Pack], outputs: Sequence[CriticOutput]) -> float:
        """Returns 1 - Var(R - V) / Var(R) over the tokens or turns of a learner step; NaN if all targets R are equal.

        V are the values before the step, so the episodes are new to them. 1: the critic predicts every target. 0: it
        predicts no more than their mean. A collective.
        """
        targets: list[Tensor] = []
        errors: list[Tensor] = []
        for p, output in zip(packs, outputs, strict=True):
            if p.weight:
                some = first_tokens(p.row, p.num_rows) if self._turns else slice(None)
                targets.append(output.returns[some].double())
                errors.append(targets[-1] - output.values[some])
        (_, spread), (_, error) = self._moments(targets), self._moments(errors)
        return math.nan if spread**2 < 2 * EPSILON else 1 - (error / spread) ** 2

    def _moments(self, parts: list[Tensor]) -> tuple[float, float]:
        """Returns mean and sqrt(unbiased variance + ε) over the numbers of all ranks."""
        count, total = self.rank_group.all_reduce([float(sum(map(len, parts))),
                                                   sum(float(part.sum()) for part in parts)])
        mean = total / count
        (squares,) = self.rank_group.all_reduce([sum(float(((part - mean) ** 2).sum()) for part in parts)])
        return mean, math.sqrt(squares / max(count - 1, 1) + EPSILON)

    def loss(self, pack: Pack, output: CriticOutput, *, mean: Mean) -> Tensor:
        """Returns this pack's part of the minibatch's clipped value loss, a mean over its tokens or turns."""
        values, before, returns = self.trained_model.model(pack), output.values, output.returns
        count = mean.num_tokens
        if self._turns:
            first = first_tokens(pack.row, pack.num_rows)
            values, before, returns, count = values[first], before[first], returns[first], mean.num_rows
        return value_loss(values, before, returns, clip=self.section.critic.value_clip, count=count)


def make_critic(section: LearnerSection, model_path: Path, rank_group: RankGroup, layout: Layout, *,
                half: bool) -> Critic:
    """Returns the critic made from the weights in `model_path`. Raises UserError if the folder holds no model.

    `half`: whether its body computes in bfloat16.
    """
    policy, weights = empty_policy(model_path)
    model = ValueModel(policy.body, policy.hf.config.get_text_config().hidden_size)
    model.head.to(rank_group.device)
    mesh = rank_group.mesh_of(layout.shards)
    fully_shard(model.head, mesh=mesh)  # always in float32: returns need more than bfloat16's 8 bits
    shard(model, model.body, weights, mesh, layout=layout, half=half)
    return Critic(
        trained_model=TrainedModel(model, section, lr=section.critic_lr), rank_group=rank_group, section=section)
