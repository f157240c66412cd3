"""The answer of the sampler to one prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    """Returns the sample in an answer of the vLLM process (process.py). `versions`: name -> version."""
    return Sample(
        ids=np.array(final["ids"], dtype=np.int32),
        logprobs=np.array(final["logprobs"], dtype=np.float32),
        spans=[VersionSpan(version=versions[name], start=start, end=end) for name, start, end in final["spans"]],
        finished=final["finished"])


def cut_at(sample: Sample, stops: Sequence[str], decode: Callable[[list[int]], str], *,
           keep: bool = False) -> tuple[Sample, str, str | None]:
    """Cuts a sample at the first of the texts `stops`, as if the sampler had ended there.

    Returns the sample, its text before the stop text, and the stop text, or None if there is none. `keep`: the returned
    text includes the stop text. A token depends only on those before it, so cutting changes none that remain. The last
    one is the token that completes the stop text, because the policy had to choose it.
    """
    ids = sample.ids.tolist()
    text = decode(ids)
    if not any(stop in text for stop in stops):
        return sample, text, None
    shortest, longest = 0, len(ids)  # without one of the texts, and with one
    while longest - shortest > 1:
        middle = (shortest + longest) // 2
        stopped = any(stop in decode(ids[:middle]) for stop in stops)
        shortest, longest = (shortest, middle) if stopped else (middle, longest)
    text = decode(ids[:longest])
    spans = [VersionSpan(version=span.version, start=span.start, end=min(span.end, longest))
             for span in sample.spans if span.start < longest]
    cut = Sample(ids=sample.ids[:longest], logprobs=sample.logprobs[:longest], spans=spans, finished="stop")
    begins, length, first = min((text.index(stop), len(stop), stop) for stop in stops if stop in text)
    return cut, text[:begins + length * keep], first
