"""Our estimators in the registry of verl.

    from gagpo.integrations.verl import register
    register(gamma=0.95, penalty=0.1)          # then algorithm.adv_estimator=gagpo
"""

from __future__ import annotations

from typing import Any

from gagpo.integrations.steps import STEP_LEVEL, advantage_function


def register(*names: str, **options: Any) -> None:
    """Registers estimators by name, all that compare steps by their states if none is named.

    `options`: keys of `learner.credit`, such as `gamma=0.95`. Call it once in the process that runs the trainer. The
    trainer's own γ and λ are not read. Raises UserError for an unknown name or option, ImportError if verl is not
    installed, and what verl raises for a name that it has already.
    """
    from verl.trainer.ppo.core_algos import register_adv_est  # pyright: ignore[reportMissingImports]

    for name in names or STEP_LEVEL:
        register_adv_est(name)(advantage_function(name, options))
