"""How full the engine's KV cache is, after each of its steps, and nothing else of what vLLM can measure.

Its own statistics cost some microseconds per token in the process that plays the episodes, and a hundred metrics.
Import it after vllm's environment is prepared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.metrics.loggers import PrometheusStatLogger


def kv_listener(tell: Callable[[float], object]) -> type[PrometheusStatLogger]:
    """A `stat_loggers` entry that calls `tell` with the share of KV blocks that requests hold.

    A subclass of vLLM's Prometheus logger, because vLLM adds that one to any list that has none.
    """

    class KvListener(PrometheusStatLogger):
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
            if scheduler_stats is not None:
                tell(scheduler_stats.kv_cache_usage)

        def log_engine_initialized(self) -> None:
            pass

    return KvListener
