"""Questions with their golden answers, in splits that share no question.

A folder holds either `train.jsonl`, `valid.jsonl` and `heldout.jsonl`, or one `questions.jsonl` that is split by a hash
of the question. A line is {"question": str, "golden_answers": str or [str, ...], "data_source": str}. Results are
reported by data_source, which is `qa` if it is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import msgspec

from envservice.base import digest_of
from services.errors import UserError
from services.files import NOT_JSON, without_mark

Split = Literal["train", "valid", "heldout"]
SPLITS: tuple[Split, ...] = get_args(Split)
_FORM = 'one object a line: {"question": "...", "golden_answers": ["..."], "data_source": "..."}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question, which is one task."""

    question: str
    golden_answers: tuple[str, ...]
    """All right answers."""
    data_source: str = "qa"

    @property
    def content(self) -> bytes:
        """Returns the bytes that the task's digest covers."""
        return msgspec.json.encode([self.question, self.golden_answers, self.data_source])


class _Line(msgspec.Struct):
    question: str
    golden_answers: str | list[str]
    data_source: str = "qa"


class _Document(msgspec.Struct):
    id: str | int
    contents: str


Questions = Mapping[Split, tuple[Question, ...]]


def split_of(key: str) -> Split:
    """Returns the split of a key by its hash: about 3 of 16 keys are `heldout`, one is `valid`, the others are
    `train`."""
    place = hashlib.blake2b(key.encode(), digest_size=1).digest()[0] % 16
    return "valid" if place == 0 else "heldout" if place <= 3 else "train"


def by_hash(questions: Iterable[Question], key: Callable[[Question], str] = lambda each: each.question) -> Questions:
    """Splits questions by `key`. Questions with the same key are in the same split."""
    by_split: dict[Split, list[Question]] = {split: [] for split in SPLITS}
    for each in questions:
        by_split[split_of(key(each))].append(each)
    return {split: tuple(rows) for split, rows in by_split.items()}


def read_questions(folder: Path) -> Questions:
    """Reads the questions of a folder. Raises UserError for missing, malformed or overlapping files."""
    single = folder / "questions.jsonl"
    files: dict[Split, Path] = {split: folder / f"{split}.jsonl" for split in SPLITS}
    if single.is_file():
        if others := [path.name for path in files.values() if path.is_file()]:
            raise UserError(f"{folder} has questions.jsonl and {', '.join(others)}", "keep one of the two forms")
        return by_hash(_read(single))
    if missing := [path.name for path in files.values() if not path.is_file()]:
        raise UserError(f"{folder} has neither questions.jsonl nor {', '.join(missing)}", "point env.data at questions")
    questions: Questions = {split: _read(path) for split, path in files.items()}
    seen: dict[str, Split] = {}
    for split, rows in questions.items():
        for row in rows:
            if seen.setdefault(row.question, split) != split:
                raise UserError(f"{row.question!r} is in {seen[row.question]}.jsonl and in {split}.jsonl",
                                "keep each question in one split")
    return questions


def questions_digest(questions: Questions) -> str:
    """Returns blake2b over all questions with their splits, in order."""
    return digest_of(f"{split} {row.content.decode()}" for split in SPLITS for row in questions[split])


def read_documents(path: Path) -> list[tuple[str, str]]:
    """Reads (id, contents) from a jsonl file of {"id": str, "contents": str}.

    Raises UserError for a malformed line, for an id that occurs twice, and for a file without a document.
    """
    documents: dict[str, str] = {}
    form = 'write one object a line: {"id": "...", "contents": "..."}'
    decoder = msgspec.json.Decoder(_Document)
    for number, line in _lines(path):
        try:
            row = decoder.decode(line)
        except NOT_JSON as error:
            raise UserError(f"line {number} of {path} is not a document: {error}", form) from None
        name = str(row.id)
        if name in documents:
            raise UserError(f"line {number} of {path} has the id {name!r} of an earlier line",
                            "give each document an id of its own")
        documents[name] = row.contents
    if not documents:
        raise UserError(f"{path} has no document", form)
    return list(documents.items())


def _read(path: Path) -> tuple[Question, ...]:
    rows: list[Question] = []
    for number, line in _lines(path):
        try:
            row = msgspec.json.decode(line, type=_Line)
        except NOT_JSON as error:
            raise UserError(f"line {number} of {path} is not a question: {error}", f"write {_FORM}") from None
        golden = [row.golden_answers] if isinstance(row.golden_answers, str) else row.golden_answers
        if not golden:
            raise UserError(f"line {number} of {path} has no golden answer", f"write {_FORM}")
        if not all(text.strip() for text in (row.question, *golden)):
            raise UserError(f"line {number} of {path} has an empty question or golden answer", f"write {_FORM}")
        rows.append(Question(question=row.question, golden_answers=tuple(golden), data_source=row.data_source))
    return tuple(rows)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that are not blank, with their numbers from 1. Raises UserError if the file cannot be read."""
    try:
        data = without_mark(path.read_bytes(), path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "name a file that exists and is readable") from None
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield number, line
