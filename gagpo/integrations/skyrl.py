"""Our estimators in the registry of SkyRL.

    from gagpo.integrations.skyrl import register
    register(gamma=0.95, penalty=0.1)          # then trainer.algorithm.advantage_estimator=gagpo
"""

from __future__ import annotations

from typing import Any

from gagpo.integrations.steps import STEP_LEVEL, advantage_function


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
