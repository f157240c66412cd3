"""Settings that are allowed but hardly meant: keys without effect, and learning rates of tiny models for large ones."""

from __future__ import annotations

from deploy.launch.idle_keys import idle_keys
from deploy.launch.model_memory import model_shape
from learner.credit.registry import estimator
from services.config.tree import Config

LARGE_MODEL = 50_000_000
"""Parameters from which on a model counts as a published one, and not as one of the tiny configs."""
HIGHEST_RATE = 1e-4
"""Highest learning rate at which all weights of such a model are usually trained."""


def warnings(config: Config) -> list[str]:
    """Returns one line for each warning about a config. If the config names a model, reads its headers."""
    return [*idle_keys(config), *_large_rates(config)]


def _large_rates(config: Config) -> list[str]:
    """Returns a line for each learning rate of a tiny model that would train a large one. Adapters take high rates, but
    a critic has none: all its weights are trained, at ten times their rate unless it has its own."""
    learner, sft = config.learner, config.sft
    if config.model.path is None or (parameters := model_shape(config.model).parameters) < LARGE_MODEL:
        return []
    rates = {} if learner.lora.rank else {"learner.lr": (learner.lr, 1e-6)}
    critic = estimator(learner.credit.estimator).needs_critic
    rates |= {"learner.critic.lr": (learner.critic_lr, 1e-5)} if critic else {}
    rates |= {"sft.lr": (sft.lr, 1e-5)} if sft.enabled else {}
    return [f"{key}={rate:g} is for tiny models, and {config.model.path} has {parameters:,} parameters: "
            f"try {key}={usual:g}" for key, (rate, usual) in rates.items() if rate > HIGHEST_RATE]
