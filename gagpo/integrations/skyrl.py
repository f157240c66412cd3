"""Step-level credit inside SkyRL: our estimators in its registry, and a trainer that gives each step its own advantage.

    class Trainer(StepCredit, RayPPOTrainer):
        pass

    register(gamma=0.95)      # then trainer.algorithm.advantage_estimator=gagpo generator.step_wise_trajectories=true
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gagpo.integrations.steps import STEP_LEVEL, StepUid, TokenStep, advantage_function, check_trainer, step_uids
from services.errors import UserError

if TYPE_CHECKING:
    from skyrl.train.trainer import RayPPOTrainer as Base  # pyright: ignore[reportMissingImports]
else:
    Base = object  # a mixin: the other trainers of SkyRL are subclasses of RayPPOTrainer

TRIED = "0.3"
"""The version of SkyRL whose methods this module overrides."""


def register(*names: str, **options: Any) -> None:
    """Registers estimators by name, all that compare steps by their states if none is named.

    `options`: keys of `learner.credit`, such as `gamma=0.95`. Call it once in the process that runs the trainer. The
    trainer's own γ and λ are not read. Raises UserError for an unknown name or option, ImportError if SkyRL is not
    installed, and what SkyRL raises for a name that it has already.
    """
    from skyrl.backends.skyrl_train.utils.ppo_utils import (  # pyright: ignore[reportMissingImports]
        register_advantage_estimator,
    )

    for name in names or STEP_LEVEL:
        register_advantage_estimator(name)(advantage_function(name, options))


class StepCredit(Base):  # pyright: ignore[reportUntypedBaseClass]
    """A mixin for a trainer of SkyRL: rows are steps, and all of them get the advantages of an estimator of ours.

    Raises UserError for another version of SkyRL, for an estimator that is not ours, and for options of the generator
    by which rows are no steps or do not show where an answer ends.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        check_trainer("skyrl", TRIED, self.cfg.trainer.algorithm.advantage_estimator)
        for name, value in (("step_wise_trajectories", True), ("merge_stepwise_output", False),
                            ("apply_overlong_filtering", False)):
            seen = getattr(self.cfg.generator, name)
            if seen is not value:
                raise UserError(f"generator.{name} is {seen}, and credit needs rows that are steps",
                                f"generator.{name}={str(value).lower()}")

    def convert_to_training_input(self, generator_output: Any, uids: list[str]) -> Any:
        """Gives each row a StepUid, unless the generator has made one of each `instance_id` itself."""
        if not all(isinstance(uid, StepUid) for uid in uids):
            uids = self._step_uids(generator_output, uids)
        return super().convert_to_training_input(generator_output, uids)

    def _step_uids(self, output: Any, uids: Sequence[str]) -> list[str]:
        """Returns the id of each row. An episode's number is its place in the batch. Raises ValueError for rows after
        the last step of the last episode."""
        made: list[str] = []
        ends = [row + 1 for row, last in enumerate(output["is_last_step"]) if last]
        if ends[-1:] != [len(output["is_last_step"])]:
            raise ValueError(f"SkyRL's batch of {len(output['is_last_step'])} rows ends within an episode")
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            made += step_uids(uids[start], str(number), [
                TokenStep(prompt=output["prompt_token_ids"][row], response=output["response_ids"][row],
                          mask=output["loss_masks"][row]) for row in range(start, end)], self.tokenizer)
        return made

    def compute_advantages_and_returns(self, data: Any) -> Any:
        """Has SkyRL compute them with each row as the last step of a trajectory of its own.

        Otherwise it gives the estimator the last steps alone, and their ids as an array of plain text. Rows that fill
        the batch are copies of the first one, so they get its id.
        """
        uids, last = data.metadata["uids"], data.metadata["is_last_step"]
        rows = len(uids) - data.metadata.get("pad_size", 0)
        filled = np.array([*uids[:rows], *uids[:1] * (len(uids) - rows)], dtype=object)
        data.metadata |= {"uids": filled, "is_last_step": [True] * len(uids)}
        data = super().compute_advantages_and_returns(data)
        data.metadata |= {"uids": uids, "is_last_step": last}
        final = data["rewards"].sum(dim=-1)[:rows][np.array(last[:rows])].mean().item()
        data.metadata["metrics"]["avg_final_rewards"] = self.all_metrics["loss/avg_final_rewards"] = final
        return data
