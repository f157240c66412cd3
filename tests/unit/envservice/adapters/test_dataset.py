"""Rows of datasets as tasks, from every form that a published dataset has."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest
from pyarrow import parquet

from envservice.adapters.dataset import dataset_spec, read_splits
from envservice.base import Outcome
from services import parquet_files
from services.config.tree import EnvSection
from services.errors import EnvFault, UserError

ROWS = [{"question": f"{n} + 1?", "answer": str(n + 1), "level": "easy" if n < 5 else "hard"} for n in range(60)]


class Quiz:
    """Three tries; each answer earns a part of the reward, so that rewards are dense."""

    def __init__(self, row):
        self._row = row
        self._tries = 0

    def reset(self):
        return Outcome(observation=self._row["question"], admissible_actions=[])

    def step(self, action):
        self._tries += 1
        right = action == self._row["answer"]
        return Outcome(observation="Right." if right else "Wrong.", admissible_actions=[],
                       reward=1.0 if right else -0.25, done=right or self._tries == 3, won=right)


def opened(data, **named):
    return dataset_spec(Quiz, name="quiz", **named).open(EnvSection(name="x:y", data=data))


def lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def saved(folder, rows):
    """As `Dataset.save_to_disk` leaves a split."""
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist(rows)
    name = "data-00000-of-00001.arrow"
    with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
        out.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))


def as_json_lines(folder):
    for name, rows in zip(("train", "validation", "test"), (ROWS[:4], ROWS[4:6], ROWS[6:8]), strict=True):
        lines(folder / f"{name}.jsonl", rows)


def as_hub_shards(folder):
    (folder / "data").mkdir()
    for name, rows in (("train-00000-of-00002", ROWS[:2]), ("train-00001-of-00002", ROWS[2:4]),
                       ("validation-00000-of-00001", ROWS[4:6]), ("test-00000-of-00001", ROWS[6:8])):
        parquet.write_table(pa.Table.from_pylist(rows), folder / "data" / f"{name}.parquet")


def as_saved_to_disk(folder):
    for name, rows in zip(("train", "validation", "test"), (ROWS[:4], ROWS[4:6], ROWS[6:8]), strict=True):
        saved(folder / name, rows)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation", "test"]}))


@pytest.mark.parametrize("write", [as_json_lines, as_hub_shards, as_saved_to_disk])
def test_every_form_gives_the_same_tasks_with_the_same_digests(tmp_path, write):
    write(tmp_path)
    quiz = opened(tmp_path, task_type=lambda row: row["level"])
    assert {split: len(quiz.tasks(split)) for split in quiz.splits()} == {"test": 2, "train": 4, "validation": 2}
    assert quiz.tasks("train")[3] == "quiz/train/00000003"
    assert (quiz.task_type("quiz/train/00000003"), quiz.task_type("quiz/test/00000000")) == ("easy", "hard")
    assert quiz.digest("train") == "b104fe564d5a622f781ac8549d660762"
    assert quiz.version == "1+data-8489b280"
    session = quiz.open("quiz/train/00000003")
    assert session.reset().observation == "3 + 1?"
    assert [session.step(action).reward for action in ("5", "4")] == [-0.25, 1.0]


def test_the_version_covers_the_rows_that_a_run_uses(tmp_path):
    """Two files of as many rows have the same task ids, and a run must not go on from one to the other."""
    as_json_lines(tmp_path / "before")
    as_json_lines(tmp_path / "corrected")
    lines(tmp_path / "corrected" / "test.jsonl", [ROWS[6], ROWS[7] | {"answer": "eight"}])
    as_json_lines(tmp_path / "more")
    lines(tmp_path / "more" / "hard.jsonl", ROWS[8:])
    before, corrected, more = (opened(tmp_path / name) for name in ("before", "corrected", "more"))
    assert corrected.version != before.version == more.version


def test_fewer_than_three_splits_are_refused():
    for splits in (("train",), "dev"):
        with pytest.raises(UserError, match=r"the dataset quiz has splits=.*; name three: to train on, to choose"):
            dataset_spec(Quiz, name="quiz", splits=splits)


def test_one_file_is_cut_by_its_column_or_by_a_hash_of_each_row(tmp_path):
    named = tmp_path / "named.jsonl"
    lines(named, [row | {"split": "abc"[n % 3]} for n, row in enumerate(ROWS)])
    quiz = opened(named, splits=("a", "b", "c"))
    assert quiz.training_splits() == ("a", "b", "c")
    assert [len(quiz.tasks(split)) for split in "abc"] == [20, 20, 20]
    lines(named, [row | {"split": ("en/a", "en/b", "de/c")[n % 3]} for n, row in enumerate(ROWS)])
    quiz = opened(named, splits=("en/a", "en/b", "de/c"))
    assert quiz.open(quiz.tasks("en/b")[0]).reset().observation == ROWS[1]["question"]
    lines(tmp_path / "plain.jsonl", ROWS)
    lines(tmp_path / "longer.jsonl", [{"question": "new", "answer": "-", "level": "hard"}, *ROWS])
    plain, longer = (read_splits(tmp_path / name) for name in ("plain.jsonl", "longer.jsonl"))
    assert sorted(plain) == ["test", "train", "validation"]
    for split in plain:
        kept = [row for row in longer[split].to_pylist() if row["question"] != "new"]
        assert kept == plain[split].to_pylist(), "a new row moves no other"


@pytest.mark.parametrize("task", ["quiz/train/00000004", "quiz/train/4", "quiz/dev/00000000", "other/train/00000000"])
def test_any_other_id_is_unknown(tmp_path, task):
    as_json_lines(tmp_path)
    with pytest.raises(KeyError):
        opened(tmp_path).open(task)


def test_mistakes_are_one_line(tmp_path):
    with pytest.raises(UserError, match="set env"):
        dataset_spec(Quiz, name="quiz").open(EnvSection(name="x:y"))
    with pytest.raises(UserError, match="does not exist"):
        opened(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"holds no \.jsonl"):
        opened(tmp_path)
    lines(tmp_path / "train.jsonl", ROWS[:2])
    with pytest.raises(UserError, match=r"but of train; give them in a file validation\.jsonl, or give"):
        opened(tmp_path)
    (tmp_path / "validation.jsonl").write_text("{broken\n")
    with pytest.raises(UserError, match=r"validation\.jsonl cannot be read"):
        opened(tmp_path)


@pytest.mark.parametrize(("content", "said"), [
    ('{"a": 1}\n\nnope\n', r"cannot be read \(line 3: JSON is malformed"),
    ('{"a": 1}\n{"a": "x"}\n', r"cannot be read \(column 'a' has values of several types: "), ("", "has no rows; give"),
    ('{"a": 1}\n{"a": 9223372036854775808}\n',
     r"cannot be read \(column 'a' has a whole number that does not fit into 64 bits; write it in quotes\)"),
    ('{"a": 1, "split": "train"}\n', r"has no rows of the split 'validation', but of train; name each row's split in"),
    ('{"split": "train"}\n{"split": null}\n', r"row 2 of \S+rows\.jsonl has no split, and others have one; name it")])
def test_a_mistake_in_a_file_is_told_with_its_place(tmp_path, content, said):
    (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(UserError, match=said):
        opened(tmp_path / "rows.jsonl")


@pytest.mark.attack
@pytest.mark.parametrize("content", [
    b"null", b"7", b"[1]", b"[" * 100_000, b'{"a": ' * 50_000, b"\xff\xfe", b'{"a": "\xab"}', b'{"a": NaN}',
    b'{"a": "\\ud800"}', b'{"a": 1}\n{"a": "x"}', b'{"a": 1}\nnull', b'{"a": 1', b'{"a": 1e999}'],
    ids=lambda content: str(content[:20]))
def test_broken_lines_are_one_line_and_no_crash(tmp_path, content):
    """pyarrow's own reader of JSON dies by a segmentation fault on the first."""
    (tmp_path / "train.jsonl").write_bytes(content)
    said = "is UTF-16" if content == b"\xff\xfe" else "cannot be read"
    with pytest.raises(UserError, match=rf"train.jsonl {said}") as error:
        read_splits(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.attack
def test_a_small_file_of_very_many_rows_is_refused(tmp_path, monkeypatch):
    """Equal rows take a byte for hundreds: 10 MB in memory here, in a file below 100 kB."""
    monkeypatch.setattr(parquet_files, "TABLE_BYTES", 1 << 20)
    path = tmp_path / "train.parquet"
    parquet.write_table(pa.table({"question": ["x" * 100] * 100_000}), path)
    assert path.stat().st_size < 100_000
    with pytest.raises(UserError, match=r"the rows of .*train\.parquet take more than 1 MiB in memory"):
        read_splits(tmp_path)


@pytest.mark.attack
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_flipped_bit_is_another_value_or_one_line(tmp_path, kind):
    """Text that is no text, and offsets that lead out of the file, never reach a session."""
    if kind == "arrow":
        saved(tmp_path / "train", ROWS[:9])
        (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
        file = tmp_path / "train" / "data-00000-of-00001.arrow"
    else:
        parquet.write_table(pa.Table.from_pylist(ROWS[:9]), file := tmp_path / "train.parquet")
    good, draw = file.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(60):
        data = bytearray(good)
        for _ in range(3):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        file.unlink()  # a mapped file that is overwritten in place ends the process that maps it
        file.write_bytes(data)
        try:
            read_splits(tmp_path)["train"].to_pylist()
        except UserError as error:
            refused += 1
            assert "\n" not in str(error)  # noqa: PT017 - either one line or rows
    assert refused


@pytest.mark.attack
def test_a_split_is_named_by_a_word_and_leads_nowhere_else(tmp_path):
    saved(tmp_path / "beside", ROWS[:4])
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset_dict.json").write_text('{"splits": ["../beside"]}')
    with pytest.raises(UserError, match="cannot be read"):
        read_splits(tmp_path / "data")


def test_a_line_may_lack_a_key_and_dates_stay_text(tmp_path):
    lines(tmp_path / "train.jsonl", [{"a": "2020-01-01"}, {"b": [1]}])
    assert read_splits(tmp_path)["train"].to_pylist() == [{"a": "2020-01-01", "b": None}, {"a": None, "b": [1]}]


@pytest.mark.parametrize("values", [[4, 4.5], [4.5, None, 4], [[4, 4.5]], [{"x": [4]}, {"x": [4.5]}], [4.5, True]])
def test_whole_numbers_stay_whole_or_are_refused(tmp_path, values):
    """A 4 became 4.0 beside a 4.5, so no answer equalled its text, and a new row changed the hash of others."""
    for kept in ([4, -5, None], [4.0, 4.5], [{"x": 4, "y": 4.5}], [[4], [5]]):
        lines(tmp_path / "train.jsonl", [{"answer": value} for value in kept])
        assert repr(read_splits(tmp_path)["train"]["answer"].to_pylist()) == repr(kept)
    lines(tmp_path / "train.jsonl", [{"answer": value} for value in values])
    with pytest.raises(UserError, match=r"column 'answer' has (whole numbers|true or false) and fractions; write them "
                                        r"as texts, or all as 4\.0"):
        read_splits(tmp_path)


def test_a_byte_order_mark_is_read_over_and_another_coding_is_named(tmp_path):
    """Windows writes both; the line was "JSON is malformed: invalid character (byte 0)"."""
    (tmp_path / "train.jsonl").write_text('{"a": "é"}\n', encoding="utf-8-sig")
    assert read_splits(tmp_path)["train"].to_pylist() == [{"a": "é"}]
    (tmp_path / "train.jsonl").write_text('{"a": "é"}\n', encoding="utf-16")
    with pytest.raises(UserError, match=r"train.jsonl is UTF-16; save it as UTF-8"):
        read_splits(tmp_path)


def test_a_split_with_two_sources_is_refused(tmp_path):
    """Every row was a task twice."""
    as_json_lines(tmp_path)
    parquet.write_table(pa.Table.from_pylist(ROWS[:4]), tmp_path / "train.parquet")
    with pytest.raises(UserError, match=r"the split train is in \S+/train\.jsonl and in \S+/train\.parquet; keep"):
        read_splits(tmp_path)


def test_a_split_that_lacks_a_part_is_refused(tmp_path):
    """A download that was cut gave half of the tasks, in silence."""
    as_hub_shards(tmp_path)
    for path in (tmp_path / "data").iterdir():
        path.rename(path.with_stem(f"{path.stem}-0123456789abcdef"))  # as the hub named files for some years
    assert sorted(read_splits(tmp_path)) == ["test", "train", "validation"]
    (tmp_path / "data" / "train-00001-of-00002-0123456789abcdef.parquet").unlink()
    with pytest.raises(UserError, match=r"train has 1 of the 2 files of \S+/train-00000-of-00002-\w+\.parquet"):
        read_splits(tmp_path)


def test_parts_with_other_types_and_splits_without_rows_name_the_data(tmp_path):
    """The advice was to correct the code of the environment, and to add a file that was there."""
    as_hub_shards(tmp_path)
    parquet.write_table(pa.table({"question": [1]}), tmp_path / "data" / "train-00001-of-00002.parquet")
    with pytest.raises(UserError, match=r"the files of the split train in \S+ differ \(.*question.*\); write them"):
        read_splits(tmp_path)
    lines(tmp_path / "data" / "validation.jsonl", [])
    for path in (*tmp_path.glob("data/train-*"), *tmp_path.glob("data/validation-*")):
        path.unlink()
    lines(tmp_path / "train.jsonl", ROWS)
    with pytest.raises(UserError, match="no rows of the split 'validation', but of test, train; "):
        opened(tmp_path)


def test_a_column_that_the_session_misses_is_a_fault_and_no_unknown_task(tmp_path):
    """A KeyError from `open` would read as a task that does not exist."""
    as_json_lines(tmp_path)
    environment = dataset_spec(lambda row: Quiz({"answer": row["solution"]}), name="quiz").open(
        EnvSection(name="x:y", data=tmp_path))
    with pytest.raises(EnvFault, match="KeyError 'solution', and the row has question, answer, level"):
        environment.open("quiz/train/00000000")
    with pytest.raises(KeyError):
        environment.open("quiz/train/00000099")
