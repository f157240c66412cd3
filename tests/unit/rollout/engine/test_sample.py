"""An answer that ends at a text: what a sampler that ends there would have sampled."""

from __future__ import annotations

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer

from rollout.engine.sample import Sample, cut_at
from services.records import Version, VersionSpan

TOKENIZER = byte_tokenizer()
OLD, NEW = Version(incarnation=1, step=0), Version(incarnation=1, step=1)


def sampled(text: str) -> Sample:
    ids = [*TOKENIZER.encode(text), 1]
    spans = [VersionSpan(version=OLD, start=0, end=4), VersionSpan(version=NEW, start=4, end=len(ids))]
    return Sample(ids=np.array(ids, np.int32), logprobs=-np.arange(len(ids), dtype=np.float32), spans=spans,
                  finished="length")


def decode(ids: list[int]) -> str:
    return str(TOKENIZER.decode(ids, skip_special_tokens=True))


@pytest.mark.parametrize(("text", "stops", "before", "tokens"), [
    ("Thought: é\nObservation: 5", ["Observation:"], "Thought: é\n", 24),
    ("a </code> b </code>", ["</code>"], "a ", 9), ("ab", ["a", "b"], "", 1), ("xaby", ["by", "ab"], "x", 3),
    ("火b", ["b"], "火", 4)])
def test_an_answer_ends_with_the_token_that_completes_the_text(text: str, stops: list[str], before: str, tokens: int):
    """The text before it is the answer; the tokens are the shortest beginning of the sample that holds it."""
    sample = sampled(text)
    cut, shown, stop = cut_at(sample, stops, decode)
    assert (shown, len(cut.ids), cut.finished) == (before, tokens, "stop")
    assert stop in stops
    assert decode(sample.ids[:tokens].tolist()).startswith(before + stop)
    assert not any(stop in decode(sample.ids[:tokens - 1].tolist()) for stop in stops)
    assert cut.ids.tolist() == sample.ids[:tokens].tolist()
    assert cut.logprobs.tolist() == sample.logprobs[:tokens].tolist()
    wanted = [(OLD, 0, min(4, tokens)), *([(NEW, 4, tokens)] if tokens > 4 else [])]
    assert [(span.version, span.start, span.end) for span in cut.spans] == wanted


@pytest.mark.parametrize("stops", [[], ["Observation:"]])
def test_an_answer_without_the_text_is_as_it_was(stops: list[str]):
    sample = sampled("hello")
    assert cut_at(sample, stops, decode) == (sample, "hello", None)
