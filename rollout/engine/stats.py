"""Reports how full the engine's KV cache is after each step, and nothing else that vLLM can measure.

vLLM's own statistics have a hundred metrics and cost some microseconds per token in the process that plays the
episodes. Import this file after vllm's environment is prepared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.metrics.loggers import PrometheusStatLogger


def kv_listener(tell: Callable[[float], object]) -> type[PrometheusStatLogger]:
    """Returns an entry for `stat_loggers` that calls `tell` with the share of KV blocks that requests hold.

    It is a subclass of vLLM's Prometheus logger, because vLLM adds that logger to any list without one.
    """

    class KvListener(PrometheusStatLogger):
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
            if scheduler_stats is not None:
                tell(scheduler_stats.kv_cache_usage)

        def record_sleep_state(self, *_: Any, **__: Any) -> None:
            pass

        def log_engine_initialized(self) -> None:
            pass

    return KvListener
