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


def sample_of(final: Any, versions: Mapping[str, Version]) -> Sample:
    """Returns the sample in vLLM's last output of a request. `versions`: by name."""
    ids = list(final.token_ids)
    return Sample(
        ids=np.array(ids, dtype=np.int32),
        logprobs=np.array([row[i].logprob for row, i in zip(final.logprobs, ids, strict=True)], dtype=np.float32),
        spans=[VersionSpan(version=versions[s.version], start=s.start, end=s.end) for s in final.weight_versions],
        finished=final.finish_reason)
