"""Deletes what a run that will not go on has left in a Redis and a folder of bodies that outlive it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from services.config.file import load_config
from services.config.redis import RedisSection, redis_url
from services.config.secrets import masked
from services.errors import StoreFault, UserError


def erase_keys(run: str, config_file: Path, *, ours: RedisSection, what: str, note: Callable[[str], object]) -> None:
    """Deletes the keys of a run from the Redis that its config names, and its bodies, or notes that the keys of `what`
    stay.

    A run's own Redis ends with it. The file has no password: `ours` has it, if it is the same Redis.
    """
    from services.store.bodies import Bodies
    from services.store.connection import briefly
    from services.store.store import Store

    try:
        theirs = load_config(config_file).redis
        redis = ours if masked(ours.url or "") == theirs.url else theirs
        if (url := redis_url(redis)) is not None:
            Store(url, run, settings=briefly(redis)).erase()
        else:
            Bodies(redis.bodies, run, briefly(redis).outage_seconds).sweep(lambda: ((), {}))
    except (UserError, StoreFault) as error:
        note(f"the keys of {what} stay in Redis: {error}")
