"""The index against Lucene 8.11 as anserini 0.14.3 drives it: recorded rankings, and live ones where the jar is there.

Equal means equal: the same ids in the same order with the same bits of each score.
"""

import random
from pathlib import Path

import pytest
from record_lucene import OURS, Corpus, K, Ranking, goals, invented, mixed, rank, read, terms

from envservice.bm25 import analysis
from envservice.bm25.index import build


def ours(corpus: Corpus, k: int = K) -> list[Ranking]:
    index = build(corpus.documents)
    return [[(hit.id, hit.score) for hit in index.search(query, k)] for query in corpus.queries]


@pytest.mark.parametrize("name", OURS)
def test_recorded_rankings(name: str):
    _, corpus, hits = read(name)
    assert corpus is not None
    assert sum(map(len, hits)) > 10 * len(hits)
    assert ours(corpus) == hits


def test_recorded_rankings_of_the_human_instructions(human: Path):
    digest, _, hits = read("goals")
    corpus = goals(human)
    assert corpus.digest == digest, "these are other instructions than the recorded ones"
    assert ours(corpus) == hits


def test_live_rankings(jar: Path):
    for corpus in (mixed(seed=11), invented(seed=12)):
        assert ours(corpus, 50) == rank(jar, corpus, 50)


def test_terms_of_random_texts_are_those_of_lucene(jar: Path):
    """Compares terms of random texts made from pieces of words."""
    rng = random.Random(13)
    scraps = "abysS'’:.,;_-10 9&éİΣ½×®™中あカ·"
    texts = ["x" + "".join(rng.choices(scraps, k=rng.randint(1, 12))) for _ in range(5000)]
    texts += [text for _, text in mixed(seed=14).documents]
    assert [analysis.terms(text) for text in texts] == terms(jar, texts)
