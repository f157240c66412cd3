"""How long a call waits for a Redis that is away."""

import time

from redis import ResponseError, TimeoutError

from services.config.redis import RedisSection
from services.store.connection import Connection


def test_an_outage_after_a_full_disk_is_waited_for_as_any_other():
    """The time of the full disk counted as that of the outage, so one lost answer after it ended the run."""
    connection = Connection("redis://127.0.0.1:1/0", "run", 1.0, RedisSection(outage_seconds=2), disk_s=60.0)
    began, errors = time.monotonic(), [TimeoutError("no answer")]

    def call() -> str:
        if time.monotonic() < began + 2.5:
            raise ResponseError("MISCONF Errors writing to the AOF file: No space left on device")
        if errors:
            raise errors.pop()
        return "answer"

    assert connection.retry("acquire", call) == "answer"
