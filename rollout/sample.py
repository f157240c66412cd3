"""The answer of the sampler to one prompt."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from services.records import VersionSpan


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one prompt."""

    ids: np.ndarray
    """int32 [R], the stop token included."""
    logprobs: np.ndarray
    """float32 [R], of the distribution sampled from (temperature applied)."""
    spans: list[VersionSpan]
    """Spans that cover [0, R) in order."""
    finished: Literal["stop", "length"]
