"""Terms of a text and ranks of documents, worked out by hand."""

import math
import string
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envservice.bm25 import analysis
from envservice.bm25 import index as bm25_index
from envservice.bm25.analysis import stem, terms, words
from envservice.bm25.index import LENGTHS, Hit, build, cache_folder, encode, open_index, open_or_build

WORDS = st.sampled_from(["red", "reds", "the", "shoe", "shoes", "size", "8", "blue", "box's", "3.5"])
TEXTS = st.lists(WORDS, max_size=60).map(" ".join)
SHOES = [("a", "red shoe"), ("b", "red red hat and shoe"), ("c", "blue hat"), ("d", "of the")]


def by_definition(documents: list[tuple[str, str]], query: str, k: int) -> list[Hit]:
    """The formula, document by document."""
    terms = {name: Counter(analysis.terms(text)) for name, text in documents}
    counted = [sum(counts.values()) for counts in terms.values() if counts]
    hits: list[Hit] = []
    for name, counts in terms.items():
        length = max(step for step in LENGTHS if step <= sum(counts.values()))
        score = 0.0
        for term, count in Counter(analysis.terms(query)).items():
            having = sum(term in other for other in terms.values())
            if counts[term]:
                idf = math.log(1 + (len(counted) - having + 0.5) / (having + 0.5))
                norm = 0.9 * (1 - 0.4 + 0.4 * length / (sum(counted) / len(counted)))
                score += count * idf * counts[term] / (counts[term] + norm)
        if score:
            hits.append(Hit(name, score))
    return sorted(hits, key=lambda hit: (-round(hit.score, 5), hit.id))[:k]


def test_scores_worked_by_hand():
    """N = 3 documents with terms, of lengths 2, 4, 2; `red` is in two of them, `hat` in two."""
    index = build(SHOES)
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))  # ln 1.6
    mean = 8 / 3
    once = idf * 1 / (1 + 0.9 * (0.6 + 0.4 * 2 / mean))
    twice = idf * 2 / (2 + 0.9 * (0.6 + 0.4 * 4 / mean))
    hits = index.search("reds", 10)
    assert [hit.id for hit in hits] == ["b", "a"]
    assert [hit.score for hit in hits] == pytest.approx([twice, once], rel=1e-6)
    assert index.search("Red red", 1)[0].score == pytest.approx(2 * twice, rel=1e-6)


def test_only_documents_with_a_term_are_found():
    index = build(SHOES)
    assert [hit.id for hit in index.search("hat", 10)] == ["c", "b"]
    assert index.search("of the", 10) == []
    assert index.search("", 10) == []
    assert index.search("zebra", 10) == []
    assert len(index) == 4


def test_equal_scores_go_by_id():
    index = build([(name, "same text") for name in ("b10", "b9", "a", "ä", "B")])
    assert [hit.id for hit in index.search("text", 4)] == ["B", "a", "b10", "b9"]


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=25), query=TEXTS, k=st.integers(1, 30), block=st.integers(1, 100))
def test_ranks_as_the_formula_says(texts: list[str], query: str, k: int, block: int):
    """Whatever the texts, and however many blocks the build takes."""
    documents = [(f"{n * 7 % 100:02d}", text) for n, text in enumerate(texts)]
    default, bm25_index.BLOCK = bm25_index.BLOCK, block
    try:
        hits = build(documents).search(query, k)
    finally:
        bm25_index.BLOCK = default
    expected = by_definition(documents, query, k)
    assert [hit.id for hit in hits] == [hit.id for hit in expected]
    assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in expected], abs=1e-5)


def test_lengths_are_exact_below_forty_and_then_have_four_bits():
    """SmallFloat: 24 codes for themselves, then 4 significant bits of what is above 24."""
    assert LENGTHS[:40].tolist() == list(range(40))
    assert LENGTHS[40:50].tolist() == [40, 42, 44, 46, 48, 50, 52, 54, 56, 60]
    assert LENGTHS[encode(np.array([0, 39, 41, 59, 1000]))].tolist() == [0, 39, 40, 56, 984]
    assert LENGTHS[-1] == 24 + (15 << 27)


def test_an_index_in_a_folder_is_the_same_and_is_replaced_whole(tmp_path: Path):
    folder = tmp_path / "deep" / "index"
    built = build(SHOES, folder)
    expected = build(SHOES).search("red hat", 5)
    assert open_index(folder).search("red hat", 5) == built.search("red hat", 5) == expected
    build([("z", "hat")], folder)
    assert [hit.id for hit in open_index(folder).search("red hat", 5)] == ["z"]
    assert [hit.id for hit in built.search("hat", 5)] == ["c", "b"], "an index in use outlives its folder"
    assert [path.name for path in folder.parent.iterdir()] == ["index"]


def test_a_failed_build_leaves_the_old_index(tmp_path: Path):
    folder = tmp_path / "index"
    build(SHOES, folder)
    with pytest.raises(ValueError, match="two documents have the id 'a'"):
        build([*SHOES, ("a", "again")], folder)
    assert len(open_index(folder)) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_a_stale_index_is_rebuilt_and_a_fresh_one_is_not(tmp_path: Path):
    asked: list[str] = []

    def documents(name: str):
        def read():
            asked.append(name)
            return [(name, string.ascii_lowercase)]
        return read

    for name in ("one", "one", "two", "two"):
        assert open_or_build(tmp_path / "index", name, documents(name)).digest == name
    assert asked == ["one", "two"]


@pytest.mark.parametrize("file", ["meta.json", "docs.npy", "ids.npy"])
@pytest.mark.parametrize("content", [b"", b"{}"])
def test_a_damaged_index_is_rebuilt(tmp_path: Path, file: str, content: bytes):
    """A machine that ends during a build may leave empty files behind."""
    folder = tmp_path / "index"
    open_or_build(folder, "one", lambda: SHOES)
    (folder / file).write_bytes(content)
    assert [hit.id for hit in open_or_build(folder, "one", lambda: SHOES).search("hat", 10)] == ["c", "b"]


def test_an_index_that_lacks_a_file_is_rebuilt(tmp_path: Path):
    folder = tmp_path / "index"
    open_or_build(folder, "one", lambda: SHOES)
    (folder / "docs.npy").unlink()
    assert [hit.id for hit in open_or_build(folder, "one", lambda: SHOES).search("hat", 10)] == ["c", "b"]


OPEN = """
import sys
from pathlib import Path
from envservice.bm25.index import open_or_build
folder, log = map(Path, sys.argv[1:])
def documents():
    with log.open("a") as file:
        file.write("built\\n")
    return [(str(n), "hat") for n in range(5000)]
print("ready", flush=True)
input()
assert len(open_or_build(folder, "x", documents)) == 5000
"""


def test_one_of_several_processes_builds(tmp_path: Path):
    with ExitStack() as stack:
        processes = [stack.enter_context(subprocess.Popen(
            [sys.executable, "-c", OPEN, tmp_path / "index", tmp_path / "log"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE)) for _ in range(4)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
        assert [process.wait(timeout=120) for process in processes] == [0] * 4
    assert (tmp_path / "log").read_text() == "built\n"


def test_leaving_frequent_terms_out_changes_nothing():
    """400 documents in which five words are frequent and the rest rare: what pruning is for."""
    draw = np.random.default_rng(7)
    chance = np.array([0.9, 0.7, 0.5, 0.4, 0.3, 0.05, 0.04, 0.03, 0.02, 0.01])
    words = np.array([f"word{letter}" for letter in "abcdefghij"])
    rows = draw.random((400, 10)) < chance
    documents = [(f"{n:03d}", " ".join(words[row])) for n, row in enumerate(rows)]
    index = build(documents)
    for query in ("worda wordb wordc wordj", "worda wordf wordg wordh wordi", "worde wordi wordj worda wordd", "worda"):
        for k in (1, 5, 40):
            assert [hit.id for hit in index.search(query, k)] == [hit.id for hit in by_definition(documents, query, k)]


def test_large_indexes_lie_in_the_user_s_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder("shop", "0123456789abcdef-more") == tmp_path / ".cache" / "gagpo" / "shop-0123456789abcdef"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert cache_folder("shop", "01") == tmp_path / "elsewhere" / "gagpo" / "shop-01"

# Of Porter's published samples, one or more for each rule.
STEMS = {
    "caresses": "caress", "ponies": "poni", "ties": "ti", "caress": "caress", "cats": "cat", "feed": "feed", "agreed":
    "agre", "plastered": "plaster", "bled": "bled", "motoring": "motor", "sing": "sing", "conflated": "conflat",
    "troubled": "troubl", "sized": "size", "hopping": "hop", "falling": "fall", "hissing": "hiss", "fizzed": "fizz",
    "failing": "fail", "filing": "file", "happy": "happi", "sky": "sky", "relational": "relat", "conditional":
    "condit", "rational": "ration", "valenci": "valenc", "digitizer": "digit", "radicalli": "radic", "differentli":
    "differ", "vileli": "vile", "analogousli": "analog", "vietnamization": "vietnam", "operator": "oper", "feudalism":
    "feudal", "decisiveness": "decis", "hopefulness": "hope", "callousness": "callous", "formaliti": "formal",
    "sensitiviti": "sensit", "sensibiliti": "sensibl", "triplicate": "triplic", "formative": "form", "formalize":
    "formal", "electrical": "electr", "goodness": "good", "revival": "reviv", "allowance": "allow", "inference":
    "infer", "airliner": "airlin", "adjustable": "adjust", "replacement": "replac", "adjustment": "adjust",
    "adoption": "adopt", "communism": "commun", "activate": "activ", "effective": "effect", "probate": "probat",
    "rate": "rate", "cease": "ceas", "controll": "control", "roll": "roll", "possibly": "possibl", "archaeology":
    "archaeolog", "is": "is", "y": "y", "yes": "ye", "syzygy": "syzygi", "100": "100", "10s": "10", "": "",
}  # fmt: skip


@pytest.mark.parametrize(("word", "expected"), STEMS.items())
def test_a_word_has_the_expected_stem(word: str, expected: str):
    assert stem(word) == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("Women's 3/4-sleeve T-Shirt, X-Large", ["women's", "3", "4", "sleeve", "t", "shirt", "x", "large"]),
    ("6.5 wide; 1,000 pcs. a.b c:d", ["6.5", "wide", "1,000", "pcs", "a.b", "c:d"]),
    ("9:30 _x_ x_y 5'11", ["9", "30", "_x_", "x_y", "5'11"]),
    ("½ of 10×20cm — Café ΟΔΟΣ İ", ["of", "10", "20cm", "café", "οδοσ", "i"]),
    ("Brand® ★ 東京 カメラ ひら", ["brand", "®", "★", "東", "京", "カメラ", "ひ", "ら"]),
    ("", []),
])
def test_words_end_where_unicode_says(text: str, expected: list[str]):
    assert words(text) == expected


def test_a_long_word_is_cut_into_words_of_255_characters():
    assert [len(word) for word in words("x" * 600)] == [255, 255, 90]


def test_possessives_and_stop_words_go():
    assert terms("The dog's bowls are NOT for a cat’s dinner, it's") == ["dog", "bowl", "cat", "dinner"]
