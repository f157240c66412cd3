"""Records the results of the real Lucene, so that our index can be compared with them on machines without Lucene.

    python tests/parity/bm25/record_lucene.py anserini-0.14.3-fatjar.jar [FOLDER WITH human_goals.json]

The jar is in the wheel of pyserini 0.17.0 (`pip download --no-deps pyserini==0.17.0`, 109 MB); it takes a JDK of 11 or
later. Of texts that are not ours only numbers and a digest are written.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
K = 20
Ranking = list[tuple[str, float]]
"""(id, score), best first."""


@dataclass(frozen=True)
class Corpus:
    """Texts, and queries over them."""

    documents: list[tuple[str, str]]
    queries: list[str]

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([self.documents, self.queries]).encode()).hexdigest()


def rank(jar: Path, corpus: Corpus, k: int = K) -> list[Ranking]:
    """Returns the reference's hits of each query."""
    with tempfile.TemporaryDirectory() as folder:
        documents, queries, index = (Path(folder) / name for name in ("documents", "queries", "index"))
        documents.write_text("".join(f"{name}\t{text}\n" for name, text in corpus.documents))
        queries.write_text("".join(f"{query}\n" for query in corpus.queries))
        lines = _oracle(jar, "rank", str(documents), str(queries), str(k), str(index))
    assert len(lines) == len(corpus.queries)
    return [[_hit(word) for word in line.split()] for line in lines]


def terms(jar: Path, texts: Sequence[str]) -> list[list[str]]:
    """Returns the reference's index terms of each text."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts"
        file.write_text("".join(f"{text}\n" for text in texts))
        lines = _oracle(jar, "terms", str(file))
    assert len(lines) == len(texts)
    return [line.split(" ") if line else [] for line in lines]


def _oracle(jar: Path, *arguments: str) -> list[str]:
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", str(jar), str(HERE / "LuceneOracle.java"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    return done.stdout.split("\n")[:-1]


def _hit(word: str) -> tuple[str, float]:
    name, _, bits = word.rpartition(":")
    return name, struct.unpack("f", struct.pack("I", int(bits)))[0]


def catalogue(seed: int = 1) -> Corpus:
    """WebShop's embedded products: what their instructions ask for, and words of their documents."""
    from envservice.webshop.catalogue import stock

    rng = random.Random(seed)
    shop = stock()
    documents = [(product.asin, " ".join(product.document().split())) for product in shop.products]
    asked = sorted({each.text for each in shop.instructions})
    words = [" ".join(rng.sample(text.split(), 4)) for _, text in rng.sample(documents, 75)]
    return Corpus(documents, [*rng.sample(asked, 125), *words])


def invented(seed: int = 2) -> Corpus:
    """The invented world of search QA, one document per text and also many in one text, for lengths of all sizes."""
    from envservice.search.facts import world

    rng = random.Random(seed)
    texts = [text.replace("\n", " ") for _, text in world().documents()]
    long = [" ".join(rng.sample(texts, rng.randint(2, 40))) for _ in range(150)]
    questions = [row.question for rows in world().questions().values() for row in rows]
    return Corpus(_numbered(texts + long), rng.sample(questions, 150))


def mixed(seed: int = 3) -> Corpus:
    """Pieces of product titles: numbers, units, hyphens, apostrophes, signs, accents."""
    rng = random.Random(seed)
    scraps = [
        "women's", "Men’s", "3/4", "x-large", "6.5", "1,000", "12:30", "a.b", "c:d", "t-shirt", "5'11", "16oz",
        "½", "10×20", "café", "Brand®", "Mark™", "★★", "100%", "_id_", "the", "not", "running", "runs",
        "easily", "batteries", "relational", "sized", "U.S.A.", "o'clock", "'s", "kids'", "25°C", "東京", "naïve",
        "wi-fi", "#1", "$12.99", "&", "C++", "e-mail",
    ]  # fmt: skip
    texts = ["".join(rng.choice(scraps) + rng.choice([" ", " ", " ", "", "-", ", "]) for _ in range(rng.randint(1, 70)))
             for _ in range(600)]
    queries = [" ".join(rng.choices(scraps, k=rng.randint(1, 8))) for _ in range(150)]
    return Corpus(_numbered(texts), queries)


def goals(folder: Path, seed: int = 4) -> Corpus:
    """WebShop's human instructions, as documents and as queries, and the queries that people made from them."""
    rng = random.Random(seed)
    texts = json.loads((folder / "human_goals.json").read_text())
    asked = json.loads((folder / "goal_query_map.json").read_text())
    human = [query for queries in asked.values() for query in queries]
    queries = [*rng.sample(texts, 150), *rng.sample(human, 150)]
    return Corpus(_numbered(texts), [" ".join(query.split()) for query in queries])


def _numbered(texts: Sequence[str]) -> list[tuple[str, str]]:
    return [(f"{number:05d}", text) for number, text in enumerate(texts)]


OURS = {"catalogue": catalogue, "invented": invented, "mixed": mixed}


def write(name: str, corpus: Corpus, rankings: list[Ranking], *, whole: bool) -> None:
    """Writes a recording. `whole`: with the texts, so that it stays valid if their sources change."""
    body: dict[str, object] = {"digest": corpus.digest, "hits": rankings}
    if whole:
        body |= {"documents": corpus.documents, "queries": corpus.queries}
    with gzip.GzipFile(HERE / f"{name}.json.gz", "wb", mtime=0) as file:
        file.write(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())


def read(name: str) -> tuple[str, Corpus | None, list[Ranking]]:
    """Returns (digest of the corpus, the corpus if the recording has it, hits)."""
    body = json.loads(gzip.decompress((HERE / f"{name}.json.gz").read_bytes()))
    hits = [[(one, score) for one, score in ranking] for ranking in body["hits"]]
    if "documents" not in body:
        return body["digest"], None, hits
    return body["digest"], Corpus([(one, text) for one, text in body["documents"]], body["queries"]), hits


def main(jar: Path, folder: Path | None) -> None:
    """Writes all recordings again."""
    for name, make in OURS.items():
        corpus = make()
        write(name, corpus, rank(jar, corpus), whole=True)
    if folder is not None:
        corpus = goals(folder)
        write("goals", corpus, rank(jar, corpus), whole=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
