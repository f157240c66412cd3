"""The index: its content, that it follows a run, and that it reads only what it must."""

import os
import shutil
from collections import Counter

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from explorer_run import make_group, make_run

from deploy.explorer.index import ArchiveIndex, Choice, GroupEntry, choose, kind_of, matrix
from deploy.explorer.runs import open_runs
from services.errors import UserError
from services.store.archive import ArchiveRow, EpisodeArchive


def test_an_index_entry_agrees_with_the_rows_of_its_group(run_folder):
    index = ArchiveIndex(run_folder)
    index.refresh()
    entry = index.find("step-00000002", "train/00000201")
    rows = [row for row in pq.read_table(run_folder / "episodes/step-00000002.parquet").to_pylist()
            if row["group"] == "train/00000201"]
    returns = [sum(row["reward"] for row in rows if row["k"] == k) for k in range(4)]
    counts = Counter(row["state_key"] for row in rows)
    assert (entry.step, entry.episodes, entry.steps, entry.kind) == (2, 4, len(rows), "type b")
    assert entry.won == returns.count(10.0)
    assert (entry.mean_return, entry.spread) == (np.mean(returns), np.std(returns))
    assert entry.singletons == list(counts.values()).count(1) / len(rows)
    assert entry.invalid == sum(not row["valid"] for row in rows) / len(rows)


def test_it_follows_what_comes_changes_and_goes_and_a_second_one_reads_the_cache(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", steps=2)
    episodes, aside = run / "episodes", tmp_path / "aside.parquet"
    shutil.move(episodes / "step-00000002.parquet", aside)
    index = ArchiveIndex(run)
    index.refresh()
    before = len(index.groups())
    shutil.copy(aside, episodes / "step-00000002.parquet")
    index.refresh()
    assert len(index.groups()) == before + 2
    shutil.copy(aside, episodes / "step-00000001.parquet")
    index.refresh()
    assert index.find("step-00000001", "train/00000100") is None
    assert index.find("step-00000001", "train/00000200") is not None
    (episodes / "step-00000001.parquet").unlink()
    index.refresh()
    assert len(index.groups()) == before
    monkeypatch.setattr("deploy.explorer.index.index_file", lambda path: pytest.fail(f"{path} was read again"))
    again = ArchiveIndex(run)
    again.refresh()
    assert again.groups() == index.groups()


def test_a_damaged_cache_and_a_folder_that_cannot_be_written_do_no_harm(tmp_path):
    run = make_run(tmp_path / "run", steps=1)
    (run / ".explorer").write_text("in the way")
    index = ArchiveIndex(run)
    index.refresh()
    (run / ".explorer").unlink()
    (run / ".explorer").mkdir()
    for path in (run / "episodes").iterdir():
        (run / ".explorer" / f"{path.name}.json").write_text("{")
    again = ArchiveIndex(run)
    again.refresh()
    assert again.groups() == index.groups() != []
    assert not list((run / ".explorer").glob("*.tmp"))


def test_lists_are_sorted_filtered_and_paged(run_folder):
    run, = open_runs([run_folder])
    entries = run.groups()
    spread = [entry.spread for entry in choose(entries, Choice(sort="spread", desc=True)).entries]
    assert spread == sorted(spread, reverse=True)
    found = choose(entries, Choice(outcome="trained", kind="type a", first=2, last=3, page=7))
    assert {(entry.step, entry.kind) for entry in found.entries} == {(2, "type a"), (3, "type a")}
    assert (found.page, found.pages) == (1, 1)
    assert [entry.task for entry in choose(entries, Choice(task="A-30")).entries] == ["toy/train/a-300"]


def test_the_matrix_has_a_cell_for_each_task_and_evaluation_with_its_episodes(run_folder):
    run, = open_runs([run_folder])
    found = matrix(run.evaluations, run.groups())
    assert [column.title for column in found.columns] == ["step 0 T=1", "step 3 T=1"]
    assert [(line.task, line.kind) for line in found.lines] == [
        ("toy/train/a-900", "type a"), ("toy/train/b-901", "type b")]
    assert all((column.file, line.task) in found.groups for column in found.columns for line in found.lines)


def evaluated(label: str, step: int, won: float, temperature: float = 1.0):
    return {"label": label, "step": step, "temperature": temperature, "version": "v", "split": "heldout",
            "success_rate": won, "success_low": won, "success_high": won, "success_by_task": {"a": won}}


def test_columns_are_in_the_order_of_steps_with_the_final_table_behind_the_curve():
    """The run went on with more steps after its final table, and with eval.on_panel its curve has the same games."""
    rows = [evaluated("step-000000", 0, 0.0), evaluated("panel-cold", 0, 0.0), evaluated("step-000010", 10, 0.0),
            evaluated("step-000005", 5, 0.0), evaluated("panel-trained", 10, 0.0)]
    assert [column.title for column in matrix(rows, []).columns] == [
        "step 0 T=1", "step 5 T=1", "step 10 T=1", "before RL T=1", "after RL T=1"]


def test_changes_are_those_along_the_curve_at_one_temperature():
    """Won at T = 1 and lost at T = 0.4 is no change, nor is another policy's result. The last temperature counts."""
    rows = [evaluated("step-000000", 0, 0.0), evaluated("step-000005", 5, 1.0), evaluated("step-000010", 10, 0.0, 0.4),
            evaluated("step-000015", 15, 1.0, 0.4), evaluated("step-000020", 20, 0.0, 0.4),
            evaluated("panel-cold", 0, 1.0), evaluated("panel-trained", 20, 0.0)]
    (line,) = matrix(rows, []).lines
    assert line.changes == 2


@pytest.mark.parametrize(("task", "kind"), [
    ("alfworld/train/pick_heat_then_place_in_recep-Mug-None-11/trial_T2019", "pick_heat_then_place_in_recep"),
    ("alfworld-gen/heldout/pick-0000", "pick"), ("webshop/test/1234", ""), ("hotpot", "hotpot")])
def test_a_tasks_type_is_guessed_from_its_name(task, kind):
    assert kind_of(task) == kind


def test_types_are_guessed_only_where_an_archive_does_not_hold_them(run_folder, tmp_path):
    """The tickets of some episodes have no type."""
    old = shutil.copytree(run_folder, tmp_path / "old", ignore=shutil.ignore_patterns(".explorer"))
    for path in (old / "episodes").iterdir():
        table = pq.read_table(path)
        place, nothing = table.column_names.index("task_type"), pa.nulls(len(table), pa.string())
        pq.write_table(table.set_column(place, "task_type", nothing), path)
    for folder, types in (run_folder, ["type a", "type b"]), (old, ["a", "b"]):
        run, = open_runs([folder])
        assert choose(run.groups(), Choice()).kinds == types
        assert matrix(run.evaluations, run.groups()).kinds == types


def test_a_folder_without_a_run_is_one_line(tmp_path):
    for folder in ("missing", "empty"):
        with pytest.raises(UserError):
            open_runs([tmp_path / folder])
        (tmp_path / "empty").mkdir(exist_ok=True)
    (tmp_path / "empty/config.yaml").write_text("name: x\n")
    with pytest.raises(UserError, match="neither episodes nor metrics"):
        open_runs([tmp_path / "empty"])


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_shown(tmp_path):
    run = make_run(tmp_path / "run", steps=2)
    whole = (run / "episodes/step-00000001.parquet").read_bytes()
    (run / "episodes/step-00000001.parquet").write_bytes(whole[:200])
    explored, = open_runs([run])
    assert {entry.file for entry in explored.groups() if entry.outcome == "trained"} == {"step-00000002"}
    warning, = explored.index.warnings
    assert warning.startswith("episodes/step-00000001.parquet cannot be read and is left out: ")
    (run / "episodes/step-00000001.parquet").write_bytes(whole)
    assert "step-00000001" in {entry.file for entry in explored.groups()}
    assert explored.index.warnings == []


@pytest.mark.parametrize(("column", "emptied"), [
    ("observation", False), ("attempt", False), ("baseline", False), ("reward", True), ("task", True), ("step", True)])
def test_a_file_that_lacks_a_column_or_values_is_named_and_every_page_goes_on(tmp_path, column, emptied):
    """Such a file is of another program, or damaged: it was an error on each page of its groups, or on all pages."""
    run = make_run(tmp_path / "run", steps=2)
    path = run / "episodes/step-00000001.parquet"
    table = pq.read_table(path)
    at = table.schema.get_field_index(column)
    pq.write_table(table.set_column(at, column, pa.nulls(len(table), table.schema.field(at).type)) if emptied else
                   table.drop_columns([column]), path)
    explored, = open_runs([run])
    assert {entry.file for entry in explored.groups() if entry.outcome == "trained"} == {"step-00000002"}
    warning, = explored.index.warnings
    assert f"no column {column}" in warning or f"{column} has no value" in warning


@pytest.mark.parametrize(("size", "orders"), [
    (3, [[0.7]]), (6, [[0.7]]), (7, [[0.7]]), (4, [[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]])])
def test_equal_returns_have_no_spread_whatever_is_rounded(tmp_path, size, orders):
    """0.7 three times has a mean that is not 0.7, and 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1. The list of groups with
    different returns leaves them out."""
    played = [msgspec.structs.replace(one, steps=[msgspec.structs.replace(one.steps[0], reward=reward)
                                                  for reward in orders[k % len(orders)]])
              for k, one in enumerate(make_group(1, size=size))]
    with EpisodeArchive(tmp_path / "episodes") as archive:
        archive.write(1, [ArchiveRow(episode=one, outcome="trained") for one in played])
    index = ArchiveIndex(tmp_path)
    index.refresh()
    assert [entry.spread for entry in index.groups()] == [0.0]
    assert choose(index.groups(), Choice(mixed=True)).entries == []


@pytest.mark.parametrize("broken", [{"episodes": "2"}, {"episodes": 0}, {"row_groups": []}, {"task": None}])
def test_a_cached_index_with_wrong_values_is_made_again(tmp_path, broken):
    run = make_run(tmp_path / "run", steps=1)
    index = ArchiveIndex(run)
    index.refresh()
    for path in (run / ".explorer").iterdir():
        document = msgspec.json.decode(path.read_bytes())
        for row in document["groups"]:
            for name, value in broken.items():
                row[GroupEntry.__struct_fields__.index(name)] = value
        path.write_bytes(msgspec.json.encode(document))
    again = ArchiveIndex(run)
    again.refresh()
    assert again.groups() == index.groups() != []


def test_an_archive_file_that_is_a_pipe_is_named(tmp_path):
    run = make_run(tmp_path / "run", steps=1)
    path = next((run / "episodes").iterdir())
    path.unlink()
    os.mkfifo(path)
    index = ArchiveIndex(run)
    index.refresh()
    assert "is not a plain file" in index.warnings[0]
