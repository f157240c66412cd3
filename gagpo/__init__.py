"""gagpo as a library. `import gagpo` is light: what a name needs is imported when the name is first used.

    gagpo.credit(groups, ...)        which step of an episode earned the reward
    gagpo.train(config, ...)         a whole run, as `gagpo train`
    gagpo.evaluate(model, ...)       a model or a run on a fixed set of tasks, as `gagpo eval`
    gagpo.open_run(path)             the results of a run, as Arrow tables
    gagpo.Environment, EnvironmentSpec, text_spec, dataset_spec    what an environment of your own is made of

These names are stable: a test freezes them. The packages below (deploy, learner and the others) are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gagpo.installation import load

if TYPE_CHECKING:
    from deploy.runs.results import RunResults
    from envservice.adapters.dataset import dataset_spec
    from envservice.adapters.gymnasium import text_spec
    from envservice.base import Environment
    from envservice.spec import EnvironmentSpec
    from gagpo.functions import credit, evaluate, open_run, train
    from learner.credit.types import Credit
    from services.errors import GagpoError, UserError

__all__ = [
    "Credit",
    "Environment",
    "EnvironmentSpec",
    "GagpoError",
    "RunResults",
    "UserError",
    "credit",
    "dataset_spec",
    "evaluate",
    "open_run",
    "text_spec",
    "train",
]

_HOMES = {
    "Credit": "learner.credit.types",
    "Environment": "envservice.base",
    "EnvironmentSpec": "envservice.spec",
    "GagpoError": "services.errors",
    "RunResults": "deploy.runs.results",
    "UserError": "services.errors",
    "credit": "gagpo.functions",
    "dataset_spec": "envservice.adapters.dataset",
    "evaluate": "gagpo.functions",
    "open_run": "gagpo.functions",
    "text_spec": "envservice.adapters.gymnasium",
    "train": "gagpo.functions",
}


def __getattr__(name: str) -> Any:
    """Imports a public name on its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'gagpo' has no attribute {name!r}")
    value = globals()[name] = getattr(load(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    """Returns the public names."""
    return __all__
