"""Rows of a dataset as the tasks of an environment: JSON lines, parquet, or a folder that Hugging Face datasets saved.

A task is a row: `<name>/<split>/<row's number>`. `env.data` names one of these:

    a file FILE.jsonl or FILE.parquet     its column `split` names each row's split; without one, a hash of each row
                                          puts about 8 of 10 rows into train, one into validation and one into test
    a folder                              SPLIT.jsonl, SPLIT.parquet, or SPLIT-00000-of-00002.parquet and so on, in it
                                          or in its folder `data`
    a folder by DatasetDict.save_to_disk  the splits that it names

pyarrow reads them all; the package `datasets` is not needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from envservice.adapters.gymnasium import plays_twice
from envservice.base import Environment, PromptTemplate, Replay, Session, digest_of, with_data
from envservice.spec import LONGEST, EnvironmentSpec, check_declared, opens
from envservice.text.plain_prompts import PLAIN
from services.errors import EnvFault, UserError, first_line
from services.files import NOT_JSON, Damaged, read_bounded, read_json, without_mark
from services.parquet_files import BATCH_ROWS, open_parquet, read_table

if TYPE_CHECKING:
    import pyarrow as pa

Row = Mapping[str, Any]
TRAIN, VALIDATION, TEST = PUBLISHED = ("train", "validation", "test")
"""Names of the splits of published datasets."""
SPLIT = "split"
"""The column that names a row's split."""
FILE_BYTES = 4 << 30
"""Largest .jsonl file that is read."""
_NUMBER = re.compile("[0-9]{8}")
_SHARD = re.compile(r"(.+?)(?:-\d+-of-(\d+)(?:-[0-9a-f]{16})?)?\.(jsonl|parquet)")
"""Name of a file: its split, the number of files of the split, and the suffix. Older files of the hub have a hash."""
_KINDS = {int: "whole numbers", bool: "true or false", float: "fractions"}
"""The types of JSON values that pyarrow may turn into one column of fractions, with their names."""


class DatasetEnvironment:
    """An environment whose tasks are rows. `make` returns a fresh session of a row.

    Its version is the author's, followed by the digest of the rows that runs use, because a task's id is only the
    number of its row.

    `splits` names the splits to train on, to choose the best checkpoint by, and to report on. Raises UserError for
    data that is missing, cannot be read, or lacks one of these splits.
    """

    engine = "dataset"

    def __init__(self, make: Callable[[Row], Session], data: Path, *, name: str, version: str,
                 splits: tuple[str, str, str] = PUBLISHED, task_type: Callable[[Row], str] | None = None,
                 replayable: bool = True) -> None:
        self.name, self._own_version = name, version
        self.replay: Replay = "pure" if replayable else "live"
        self._make, self._type = make, task_type
        self._tables = read_splits(data)
        self._training = splits
        self._digests: dict[str, str] = {}
        for split in splits:
            if not self._tables.get(split):
                more = ("name each row's split in a column `split`, or give more rows, or " if data.is_file() else
                        f"give them in a file {split}.jsonl, or ")
                raise UserError(f"{data} has no rows of the split {split!r}, but of "
                                f"{', '.join(name for name, rows in self._tables.items() if len(rows)) or 'none'}",
                                f"{more}give dataset_spec(splits=...) the names of three splits that it has")
        self.version = with_data(version, digest_of(map(self.digest, splits)))

    def splits(self) -> list[str]:
        return list(self._tables)

    def training_splits(self) -> tuple[str, str, str]:
        return self._training

    def tasks(self, split: str) -> list[str]:
        if split not in self._tables:
            raise UserError(f"{self.name} has no split {split!r}", f"choose one of {', '.join(self._tables)}")
        return [f"{self.name}/{split}/{number:08d}" for number in range(len(self._tables[split]))]

    def task_type(self, task: str) -> str:
        row = self._row(task)
        return self.name if self._type is None else self._type(row)

    def digest(self, split: str) -> str:
        """Covers the version that the author gives, and the rows in their order."""
        self.tasks(split)
        if split not in self._digests:
            self._digests[split] = digest_of(chain([self._own_version], map(_written, _rows_of(self._tables[split]))))
        return self._digests[split]

    def task_digest(self, task: str) -> str:
        return digest_of([self._own_version, _written(self._row(task))])

    def open(self, task: str) -> Session:
        row = self._row(task)
        try:
            return self._make(row)
        except KeyError as error:  # from here it would mean that there is no such task
            raise EnvFault(f"its session was not made: KeyError {error}, and the row has {', '.join(row)}") from error

    def _row(self, task: str) -> Row:
        split, _, number = task.removeprefix(f"{self.name}/").rpartition("/")
        table = self._tables.get(split)
        if (not task.startswith(f"{self.name}/") or table is None or not _NUMBER.fullmatch(number)
                or int(number) >= len(table)):
            raise KeyError(task)
        return table.slice(int(number), 1).to_pylist()[0]


def dataset_spec(  # noqa: PLR0913 - datasets differ in all of it
    make: Callable[[Row], Session], *, name: str, version: str = "1", max_steps: int = LONGEST,
    splits: tuple[str, str, str] = PUBLISHED, task_type: Callable[[Row], str] | None = None,
    prompts: Mapping[str, Callable[[int], PromptTemplate]] = PLAIN, replayable: bool = True, threaded: bool = False,
) -> EnvironmentSpec:
    """Makes the EnvironmentSpec of a dataset's rows, for `env.name` to point to. `env.data` says where the data is.

    `make` returns a fresh Session of a row, `task_type` the kind of a row in one word. `replayable`: whether the same
    actions lead to the same outcomes again. If not, a lost session ends its episode, which is played again. `threaded`
    is as in `text_spec`. Raises UserError for a name or `max_steps` as that does, and unless `splits` names three.
    """
    check_declared(name, max_steps)
    if isinstance(splits, str) or len(splits) != 3:
        raise UserError(f"the dataset {name} has splits={splits!r:.60}",
                        "name three: to train on, to choose the best checkpoint by, and to report on")

    @cache
    def opened(data: Path) -> DatasetEnvironment:
        return DatasetEnvironment(make, data, name=name, version=version, splits=splits, task_type=task_type,
                                  replayable=replayable)

    def open_data(env: Any) -> Environment:
        if env.data is None:
            raise UserError(f"{name} needs the rows of a dataset", "set env.data to a file or a folder")
        return opened(Path(env.data))

    return EnvironmentSpec(open=open_data, prompts=prompts, max_steps=max_steps,
                           check=plays_twice if replayable else opens, threaded=lambda _: threaded,
                           describe=lambda env: f"version {version}, rows of {env.data} as tasks")


def read_splits(data: Path) -> dict[str, pa.Table]:
    """Reads the tables of all splits, sorted by name. Raises UserError if there are none, or for one that cannot be
    read."""
    if data.is_file():
        tables = _cut(_read(data), data)
    elif (data / "dataset_dict.json").is_file():
        names = read_json(data / "dataset_dict.json", dict[str, list[str]]).get("splits", [])
        tables = {Path(name).name: _saved(data / Path(name).name) for name in names}
    elif data.is_dir():
        tables = _by_file_names(data)
    else:
        raise UserError(f"{data} does not exist", "set env.data to a file or a folder of a dataset")
    if not tables and data.is_file():
        raise UserError(f"{data} has no rows", "give it one for each task")
    if not tables:
        raise UserError(f"{data} holds no .jsonl and no .parquet file",
                        "name the files by their splits: train.jsonl, or set env.data to the folder that holds them")
    return {name: tables[name] for name in sorted(tables)}


def _by_file_names(folder: Path) -> dict[str, pa.Table]:
    parts: dict[str, list[Path]] = {}
    for path in sorted([*folder.iterdir(), *(folder / "data").glob("*")]):
        if match := _SHARD.fullmatch(path.name):
            parts.setdefault(match[1], []).append(path)
    return {name: _joined(name, paths) for name, paths in parts.items()}


def _joined(name: str, paths: Sequence[Path]) -> pa.Table:
    """Reads the only file of a split, or all of its numbered files. Raises UserError if some are missing, or if there
    are files of other kinds or places."""
    import pyarrow as pa

    kinds: dict[tuple[object, ...], Path] = {}
    for path in paths:
        match = _SHARD.fullmatch(path.name)
        assert match is not None
        kinds.setdefault((path.parent, match[2], match[3]), path)
    if len(kinds) > 1:
        raise UserError(f"the split {name} is in {' and in '.join(map(str, kinds.values()))}", "keep one of them")
    ((_, whole, _), first), *_ = kinds.items()
    if whole is not None and len(paths) != int(str(whole)):
        raise UserError(f"the split {name} has {len(paths)} of the {int(str(whole))} files of {first}",
                        "download the others, or rename the file")
    tables = [_read(path) for path in paths]
    try:
        return pa.concat_tables(tables, promote_options="default")
    except pa.ArrowException as error:
        raise Damaged(f"the files of the split {name} in {first.parent} differ ({first_line(error)})",
                      "write them with the same columns") from None


def _read(path: Path) -> pa.Table:
    import pyarrow as pa

    try:
        if path.suffix == ".parquet":
            with open_parquet(path) as file:
                return _valid(read_table(file, path))
        if path.suffix == ".jsonl":
            return table_of_lines(without_mark(read_bounded(path, FILE_BYTES), path))
    except (pa.ArrowException, OSError, *NOT_JSON) as error:
        raise Damaged(f"{path} cannot be read ({first_line(error)})", "correct it, or name another file") from None
    raise UserError(f"{path} is no .jsonl and no .parquet file", "set env.data to a file or a folder of a dataset")


def _valid(table: pa.Table) -> pa.Table:
    """Returns the table. Raises ArrowInvalid for text that is not UTF-8, and for offsets beyond the end of their data,
    as a malicious file may have them."""
    table.validate(full=True)
    return table


def _saved(folder: Path) -> pa.Table:
    """Reads one split that Hugging Face datasets saved: Arrow streams, in the files that state.json lists."""
    import pyarrow as pa

    try:
        files = [str(each["filename"]) for each in read_json(folder / "state.json", dict[str, Any])["_data_files"]]
        tables = [pa.ipc.open_stream(pa.memory_map(str(folder / Path(name).name))).read_all() for name in files]
        return pa.concat_tables(map(_valid, tables))
    except (pa.ArrowException, OSError, KeyError, TypeError) as error:
        said = str(error).partition("\n")[0]
        raise Damaged(f"{folder} cannot be read ({type(error).__name__}: {said})", "save the dataset again") from None


def _cut(table: pa.Table, file: Path) -> dict[str, pa.Table]:
    """Divides the rows of one file into splits. Only a row's own content decides, so further rows move no other."""
    rows: Sequence[Row] = table.to_pylist()
    named = SPLIT in table.column_names
    places: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        if named and row[SPLIT] is None:
            raise UserError(f"row {number + 1} of {file} has no {SPLIT}, and others have one",
                            "name it in each row, or in none")
        places.setdefault(str(row[SPLIT]) if named else _drawn(row), []).append(number)
    return {name: table.take(numbers) for name, numbers in places.items()}


def _drawn(row: Row) -> str:
    draw = int(digest_of([_written(row)]), 16) % 10
    return TRAIN if draw < 8 else VALIDATION if draw == 8 else TEST


def _rows_of(table: pa.Table) -> Iterator[Row]:
    """Yields the rows, batch by batch: all at once would take several times the memory of the table."""
    for batch in table.to_batches(BATCH_ROWS):
        yield from batch.to_pylist()


def _written(row: Row) -> str:
    return msgspec.json.encode(row, order="deterministic").decode()


def table_of_lines(data: bytes) -> pa.Table:
    """Reads one object per line. pyarrow's own reader crashes on some broken files, and takes dates for numbers.

    Raises DecodeError for a line that is no object, and ArrowInvalid for a column whose values would have to change.
    """
    import pyarrow as pa

    rows = _rows(data)
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _column(name, [row.get(name) for row in rows]) for name in names})


def _column(name: str, values: list[Any]) -> pa.Array:
    import pyarrow as pa

    try:
        column = pa.array(values)
    except pa.ArrowException as error:
        raise pa.ArrowInvalid(f"column {name!r:.40} has values of several types: {error}") from None
    except OverflowError:
        raise pa.ArrowInvalid(f"column {name!r:.40} has a whole number that does not fit into 64 bits; "
                              "write it in quotes") from None
    if "double" in str(column.type) and (mixed := _mixed(values)):
        raise pa.ArrowInvalid(f"column {name!r:.40} has {mixed}; write them as texts, or all as 4.0")
    return column


def _mixed(values: Sequence[Any]) -> str:
    """Returns the kinds that a column mixes at one place of its values, such as `whole numbers and fractions`, or
    ""."""
    by_place: dict[tuple[str | int, ...], set[type]] = {}
    for place, kind in _kinds(values, ()):
        by_place.setdefault(place, set()).add(kind)
    mixed = next((kinds for kinds in by_place.values() if len(kinds) > 1), ())
    return " and ".join(name for kind, name in _KINDS.items() if kind in mixed)


def _kinds(value: object, place: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], type]]:
    """Yields the place and type of each number and truth value in a value. All items of a list have the same place."""
    if isinstance(value, list):
        for one in cast("list[object]", value):
            yield from _kinds(one, (*place, 0))
    elif isinstance(value, Mapping):
        for key, one in cast("Mapping[str, object]", value).items():
            yield from _kinds(one, (*place, key))
    elif type(value) in _KINDS:
        yield place, type(value)


def _rows(data: bytes) -> list[dict[str, Any]]:
    """Decodes one object per line. Raises DecodeError with the number of the first line that is none."""
    decoder = msgspec.json.Decoder(dict[str, Any])
    try:
        return decoder.decode_lines(data)
    except NOT_JSON:
        for number, line in enumerate(data.split(b"\n"), 1):
            try:
                decoder.decode(line if line.strip() else b"{}")
            except NOT_JSON as error:
                raise msgspec.DecodeError(f"line {number}: {error}") from None
        raise
