"""Finds keys that the user has set but that the chosen estimator ignores. Each estimator declares the keys it reads."""

from __future__ import annotations

from services.config.file import as_yaml
from services.config.tree import Config, CriticSection


def idle_keys(config: Config) -> list[str]:
    """Returns one line for each credit or critic key that differs from its default and is ignored."""
    from learner.credit.registry import declared, estimator, keys_read

    learner, name = config.learner, config.learner.credit.estimator
    credit, critic = (section.model_dump(mode="json") for section in (learner.credit, learner.critic))
    idle = {f"learner.credit.{key}": value for key, value in credit.items()
            if value != declared(learner.credit)[key] and key not in keys_read(learner.credit)}
    if not estimator(name).needs_critic:
        idle |= {f"learner.critic.{key}": value for key, value in critic.items()
                 if value != CriticSection().model_dump(mode="json")[key]}
    return [f"{key}={as_yaml(value)} does nothing under the estimator {name}" for key, value in idle.items()]
