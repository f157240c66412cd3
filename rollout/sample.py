"""The answer of the sampler to one prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np

from services.records import Version, VersionSpan


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one prompt."""

    ids: np.ndarray
    """int32 [R], the stop token included."""
    logprobs: np.ndarray
    """float32 [R], of the distribution sampled from (temperature applied)."""
    spans: list[VersionSpan]
    """Spans that cover [0, R) in order."""
    finished: Literal["stop", "length"]


def sample_of(final: Mapping[str, Any], versions: Mapping[str, Version]) -> Sample:
    """Returns the sample in an answer of the vLLM process (vllm_process.py). `versions`: by name."""
    return Sample(
        ids=np.array(final["ids"], dtype=np.int32),
        logprobs=np.array(final["logprobs"], dtype=np.float32),
        spans=[VersionSpan(version=versions[name], start=start, end=end) for name, start, end in final["spans"]],
        finished=final["finished"])
