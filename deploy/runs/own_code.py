"""The files of an estimator and a state key of the user's own. run.json has their digests, so that a change is told."""

from __future__ import annotations

import hashlib

from services.config.tree import Config
from services.process.own_code import file_of


def code_of(config: Config) -> dict[str, str]:
    """Maps the module of an own estimator and of an own state key to the digest of its file. Other modules that these
    import are not looked at."""
    credit = config.learner.credit
    modules = {name.partition(":")[0] for name in (credit.estimator, credit.state_key) if ":" in name}
    return {module: hashlib.blake2b(file_of(module).read_bytes(), digest_size=16).hexdigest()
            for module in sorted(modules)}
