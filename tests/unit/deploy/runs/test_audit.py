"""The findings of an audit in folders that are written by hand."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deploy import cli
from deploy.commands.audit import summary
from deploy.runs.audit import audit, read_archive
from deploy.runs.folder import RunFolder
from deploy.runs.history import read_columns
from deploy.training.sweep import give_evaluations
from services.config.file import dump_config
from services.config.tree import Config
from services.files import Damaged
from services.parquet_files import ARCHIVE_ROWS
from services.records import Drop, Episode, Manifest, Step, Ticket, Version, VersionSpan
from services.store.archive import ArchiveRow, EpisodeArchive
from services.store.step_log import Journal
from services.telemetry.metrics_file import append_row

CONFIG = Config.model_validate({
    "name": "r", "steps": 2, "learner": {"groups_per_step": 2, "group_size": 2}, "eval": {"every": 0}})


def group(number: int) -> str:
    return f"train/{number:08d}"


def rows(number: int, *, sampled: int, members: int = 2) -> list[ArchiveRow]:
    """The episodes of one group, sampled by the policy of one step."""
    span = VersionSpan(version=Version(incarnation=1, step=sampled), start=0, end=1)
    ids = np.ones(1, np.int32)
    step = Step(observation="", prompt_ids=ids, response_ids=ids, logprobs=np.zeros(1, np.float32), spans=[span],
                action="look", valid=True, admissible=True, reward=0.0)
    tickets = [Ticket(group=group(number), k=k, size=2, task="t", seed=k, kind="train", temperature=1.0, max_steps=1)
               for k in range(members)]
    return [ArchiveRow(outcome="trained", episode=Episode(
        ticket=ticket, steps=[step], won=True, end="won", worker="w", attempt=1, seconds=0.1, engine="e"))
        for ticket in tickets]


def run_folder(path: Path, steps: dict[int, list[ArchiveRow]], *, ledger: dict[int, list[str]] | None = None,
               drops: dict[int, list[dict]] | None = None) -> RunFolder:
    """`ledger`: the groups of each step, where they are not those of the archive; {}: a run without a ledger."""
    folder = RunFolder(path)
    with EpisodeArchive(path / "episodes") as archive:
        for step, content in steps.items():
            archive.write(step, content)
            append_row(folder.metrics, {"step": step})
            groups = list(dict.fromkeys(row.episode.ticket.group for row in content))
            if ledger != {}:
                append_row(folder.ledger, {
                    "step": step, "incarnation": 1, "groups": (ledger or {}).get(step, groups),
                    "drops": (drops or {}).get(step, [])})
    return folder


def two_steps(*, late: int = 1) -> dict[int, list[ArchiveRow]]:
    return {1: rows(0, sampled=0) + rows(1, sampled=0), 2: rows(2, sampled=late) + rows(3, sampled=1)}


@pytest.mark.parametrize("ledger", [None, {}], ids=["by its ledger", "by its archive alone"])
def test_a_run_without_fault_is_clean(tmp_path: Path, ledger):
    result = audit(run_folder(tmp_path, two_steps(), ledger=ledger), CONFIG, None)
    assert result.findings == []
    assert [(fate.state, fate.step, fate.age) for fate in result.fates] == [
        ("trained", 1, 0), ("trained", 1, 0), ("trained", 2, 0), ("trained", 2, 0)]


def test_tokens_beyond_the_staleness_bound(tmp_path: Path):
    result = audit(run_folder(tmp_path, two_steps(late=0)), CONFIG, None)
    assert result.findings == [f"{group(2)} was trained at step 2 with tokens that are 1 step old; "
                               "learner.staleness is 0"]


def test_a_group_in_two_steps(tmp_path: Path):
    content = {1: rows(0, sampled=0) + rows(1, sampled=0), 2: rows(1, sampled=1) + rows(2, sampled=1)}
    result = audit(run_folder(tmp_path, content), CONFIG, None)
    assert result.findings == [f"{group(1)} was trained at step 1 and trained at step 2"]


def test_a_group_that_is_trained_after_it_was_dropped(tmp_path: Path):
    drops = {1: [{"group": group(2), "task": "t", "reason": "env: away"}]}
    result = audit(run_folder(tmp_path, two_steps(late=1), drops=drops), CONFIG, None)
    assert result.findings == [f"{group(2)} was trained at step 2 and dropped at step 1"]


def test_a_step_that_is_taken_after_the_journal_was_read_is_no_finding(tmp_path: Path):
    """The journal is read before the files, so a step of a run in progress may be in the ledger alone."""
    drop = Drop(group=group(4), task="t", reason="env: away")
    folder = run_folder(tmp_path, two_steps(), drops={2: [msgspec.to_builtins(drop)]})
    manifests = {1: Manifest(step=1, incarnation=1, groups=[group(0), group(1)], drops=[])}
    journal = Journal(issued=5, manifests=manifests, drops=[drop], in_flight=[group(2), group(3)])
    result = audit(folder, CONFIG, journal)
    assert result.findings == []
    assert [(fate.state, fate.step, fate.reason) for fate in result.fates[2:]] == [
        ("trained", 2, ""), ("trained", 2, ""), ("dropped", 2, "env: away")]


def test_a_trained_group_that_the_store_would_train_again(tmp_path: Path):
    manifests = {1: Manifest(step=1, incarnation=1, groups=[group(0), group(1)], drops=[])}
    journal = Journal(issued=2, manifests=manifests, drops=[], in_flight=[group(1)])
    result = audit(run_folder(tmp_path, {1: two_steps()[1]}), CONFIG, journal)
    assert result.findings == [f"{group(1)} was trained at step 1 and in flight"]


def test_a_gap_in_the_numbers_is_a_lost_group(tmp_path: Path):
    content = {1: rows(0, sampled=0) + rows(1, sampled=0), 2: rows(3, sampled=1) + rows(4, sampled=1)}
    folder = run_folder(tmp_path, content)
    assert audit(folder, CONFIG, None).findings == [
        f"{group(2)} is lost: it was issued, and it was neither trained nor dropped"]
    append_row(folder.ledger, {"step": 1, "incarnation": 2, "reset_to_group": 3})
    assert [fate.state for fate in audit(folder, CONFIG, None).fates] == [
        "trained", "trained", "forgotten", "trained", "trained"]


def test_a_drop_needs_a_reason_and_says_its_step(tmp_path: Path):
    content = {1: rows(0, sampled=0) + rows(1, sampled=0), 2: rows(4, sampled=1) + rows(5, sampled=1)}
    drops = {2: [{"group": group(n), "task": "t", "reason": reason} for n, reason in ((2, "env: away"), (3, ""))]}
    result = audit(run_folder(tmp_path, content, drops=drops), CONFIG, None)
    assert result.findings == [f"{group(3)} was dropped without a reason"]
    assert (result.fates[2].state, result.fates[2].step, result.fates[2].reason) == ("dropped", 2, "env: away")


def test_episodes_that_the_archive_lacks(tmp_path: Path):
    content = {1: rows(0, sampled=0) + rows(1, sampled=0, members=1), 2: rows(2, sampled=1) + rows(3, sampled=1)}
    result = audit(run_folder(tmp_path, content), CONFIG, None)
    assert result.findings == [f"{group(1)} has no complete episodes in the archive of step 1"]
    assert result.fates[1].tickets == {f"{group(1)}#0": "played", f"{group(1)}#1": "unplayed"}


def test_a_store_that_says_something_else(tmp_path: Path):
    manifests = {1: Manifest(step=1, incarnation=1, groups=[group(0), group(2)], drops=[])}
    journal = Journal(issued=4, manifests=manifests, drops=[], in_flight=[])
    result = audit(run_folder(tmp_path, two_steps()), CONFIG, journal)
    assert result.findings == [f"step 1 was trained on {group(0)}, {group(1)} and again on {group(0)}, {group(2)}"]


def test_an_evaluation_that_is_not_in_the_archive(tmp_path: Path):
    folder = run_folder(tmp_path, two_steps())
    append_row(folder.evaluations, {"label": "step-000002", "temperature": 0.4, "episodes": 3, "success_rate": 0.5})
    result = audit(folder, CONFIG, None)
    assert result.findings == ["evaluation at step 2, T=0.4: 0 of 3 episodes are in the archive"]
    assert result.evaluations == 0


def test_an_evaluation_that_another_run_made_is_in_the_archive_of_that_one(tmp_path: Path):
    folder = run_folder(tmp_path, two_steps())
    row = {"label": "panel-cold", "step": 0, "temperature": 1.0, "episodes": 3, "success_rate": 0.5}
    give_evaluations(folder, [row])
    result = audit(folder, CONFIG, None)
    assert result.findings == []
    assert result.evaluations == 0


def test_the_command_exits_with_1_if_anything_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = run_folder(tmp_path, two_steps(late=0))
    dump_config(CONFIG, folder.config_file)
    folder.identity_file.write_text('{"run": "r-1"}')
    assert cli.main(["audit", str(tmp_path), "--groups"]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[2] == f"{group(2)}  2/2 episodes  trained at step 2, 1 step old"
    assert printed[4].startswith("4 groups issued: 4 trained; the oldest tokens trained on were 1 step old")
    assert printed[-1] == "1 finding"
    assert cli.main(["audit", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["fates"][3]["tickets"] == {f"{group(3)}#{k}": "played" for k in (0, 1)}


def test_a_run_that_has_trained_nothing_is_not_called_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = run_folder(tmp_path, {})
    dump_config(CONFIG, folder.config_file)
    folder.identity_file.write_text('{"run": "r-1"}')
    assert cli.main(["audit", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "0 groups issued: none",
        "0 evaluations with all their episodes",
        "note: the run has not finished, and its store cannot be reached: no group is judged",
        "nothing wrong, and nothing to judge yet: no group was trained",
    ]
    journal = Journal(issued=2, manifests={}, drops=[], in_flight=[group(0), group(1)])
    assert summary(audit(folder, CONFIG, journal)) == [
        "2 groups issued: 2 in flight",
        "0 evaluations with all their episodes",
        "nothing wrong, and nothing to judge yet: no group was trained",
    ]


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["audit", str(tmp_path)]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err


def test_an_archive_of_a_million_equal_rows_is_refused_in_one_line(tmp_path):
    """A few kilobytes, which were expanded until the memory was full."""
    path = tmp_path / "episodes" / "step-00000001.parquet"
    path.parent.mkdir()
    rows = ARCHIVE_ROWS + 1
    pq.write_table(pa.table({name: pa.array([value]).take(pa.array([0] * rows)) for name, value in (
        ("group", "train/00000000"), ("k", 0), ("outcome", "trained"), ("reason", ""), ("version", "1.0"))}), path)
    assert path.stat().st_size < 100_000
    with pytest.raises(Damaged, match="has 1,048,577 rows, and at most 1,048,576 are read"):
        read_archive(RunFolder(tmp_path))
    assert read_columns([path], ["group"]) == ([], [
        f"episodes/{path.name} cannot be read and is left out: {path} has 1,048,577 rows, "
        "and at most 1,048,576 are read; restore it, or move it away"])
