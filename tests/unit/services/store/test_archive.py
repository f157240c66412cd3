"""The files that the archive writes, and how a failing disk is reported."""

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from waiting import wait_until

from services.errors import Fault, StoreFault
from services.records import Drop, Episode, JudgedAction, Step, Ticket, Version, VersionSpan
from services.store.archive import FORMAT, ROW_GROUP, ArchiveRow, EpisodeArchive


def played(k=0, group="train/00000003"):
    def step(action, *steps):
        spans = [VersionSpan(version=Version(incarnation=1, step=n), start=i, end=i + 1) for i, n in enumerate(steps)]
        return Step(
            observation="You are in a room.", prompt_ids=np.arange(5, dtype=np.int32),
            response_ids=np.array([7, 8], np.int32), logprobs=np.array([-0.5, -0.25], np.float32), spans=spans,
            action=action, valid=True, admissible=True, reward=0.0)

    ticket = Ticket(
        group=group, k=k, size=2, task="alfworld/train/x", seed=1, kind="train", temperature=1.0,
        max_steps=5, task_type="look" if k else "")
    return Episode(
        ticket=ticket, steps=[step("look", 4, 4), step("go to desk 1", 4, 5)], won=True, end="won", worker="w",
        attempt=1, seconds=1.0, engine="own", final_observation="You won.")


def test_one_row_per_step_with_the_learners_columns(tmp_path):
    credit = {"advantage": [0.5, -0.5], "state_key": ["a", "b"], "raw_advantage": [1.0, -1.0],
              "learner_logprobs": [np.array([-0.5, -0.25]), np.array([-1.0, -2.0])]}
    with EpisodeArchive(tmp_path / "episodes") as archive:
        judged = JudgedAction(turn=1, good=True, answers=[msgspec.structs.replace(played().steps[0], action=said)
                                                          for said in ("good", "", "bad")])
        archive.write(12, [
            ArchiveRow(episode=msgspec.structs.replace(played(), judged=[judged]), outcome="trained", columns=credit),
            ArchiveRow(episode=played(1), outcome="dropped", reason="engine"),
        ])
    table = pq.read_table(tmp_path / "episodes/step-00000012.parquet")
    assert table.schema.metadata[b"format"] == str(FORMAT).encode()
    rows = table.to_pylist()
    assert [(r["k"], r["step"], r["outcome"], r["action"]) for r in rows] == [
        (0, 0, "trained", "look"), (0, 1, "trained", "go to desk 1"),
        (1, 0, "dropped", "look"), (1, 1, "dropped", "go to desk 1")]
    assert [r["task_type"] for r in rows] == [None, None, "look", "look"]
    assert [r["advantage"] for r in rows] == [0.5, -0.5, None, None]
    assert [r["state_key"] for r in rows] == ["a", "b", None, None]
    assert rows[1]["version"] == "1.4,1.5"
    assert rows[0]["tokens"] == [7, 8]
    assert rows[0]["logprobs"] == [-0.5, -0.25]
    assert rows[0]["prompt_ids"] == [0, 1, 2, 3, 4]
    assert [r["raw_advantage"] for r in rows] == [1.0, -1.0, None, None]
    assert [r["learner_logprobs"] for r in rows] == [[-0.5, -0.25], [-1.0, -2.0], None, None]
    assert [r["final_observation"] for r in rows] == [None, "You won.", None, "You won."]
    assert [(r["judged"], r["verdicts"]) for r in rows] == [
        (None, None), ("good", ["good", "", "bad"]), (None, None), (None, None)]
    assert [path.name for path in (tmp_path / "episodes").iterdir()] == ["step-00000012.parquet"]


def test_row_groups_end_where_groups_do(tmp_path):
    """Groups of 600, 300 and 300 steps and one of 2: a row group has at least ROW_GROUP rows, but for the last."""
    assert ROW_GROUP == 512
    sizes = {"a": 300, "b": 150, "c": 150, "d": 1}
    with EpisodeArchive(tmp_path) as archive:
        archive.write(1, [ArchiveRow(episode=played(k, group), outcome="trained")
                          for group, size in sizes.items() for k in range(size)])
    with pq.ParquetFile(tmp_path / "step-00000001.parquet") as file:
        found = [sorted(set(file.read_row_group(i)["group"].to_pylist())) for i in range(file.num_row_groups)]
    assert found == [["a"], ["b", "c"], ["d"]]


def test_parts_are_files_of_their_own_and_a_replayed_step_replaces_its_own(tmp_path):
    with EpisodeArchive(tmp_path) as archive:
        archive.write(1, [ArchiveRow(episode=played(), outcome="evaluated")], part="eval")
        archive.write(1, [ArchiveRow(episode=played(), outcome="trained")])
        archive.write(1, [ArchiveRow(episode=played(1), outcome="trained")])
    assert set(pq.read_table(tmp_path / "step-00000001-eval.parquet")["outcome"].to_pylist()) == {"evaluated"}
    assert set(pq.read_table(tmp_path / "step-00000001.parquet")["k"].to_pylist()) == {1}


def test_a_dropped_group_leaves_what_it_finished_once_however_often_it_is_dropped(tmp_path):
    drop = Drop(group="train/00000003", task="alfworld/train/x", reason="env: gone")
    with EpisodeArchive(tmp_path) as archive:
        archive.write_dropped({drop: []})
        assert not list(tmp_path.iterdir())
        archive.write_dropped({drop: [played()]})
        archive.write_dropped({drop: [played(), played(1)]})
    (file,) = tmp_path.iterdir()
    assert file.name == "step-00000000-dropped-train-00000003.parquet"
    rows = pq.read_table(file).to_pylist()
    assert [(row["k"], row["outcome"], row["reason"]) for row in rows] == [
        (k, "dropped", "env: gone") for k in (0, 0, 1, 1)]


def test_flush_raises_what_the_writer_met(tmp_path):
    archive = EpisodeArchive(tmp_path)
    wrong = msgspec.structs.replace(played(), worker=5)  # the column takes text
    archive.write(1, [ArchiveRow(episode=wrong, outcome="trained")])
    with pytest.raises(StoreFault, match="could not write"):
        archive.flush()
    with pytest.raises(StoreFault, match="could not write"):
        archive.write(2, [])


def test_a_disk_that_takes_no_file_is_waited_for(tmp_path):
    """A folder in the place of the file has the effect of a full disk."""
    with EpisodeArchive(tmp_path, deadline_s=240.0) as archive:
        (tmp_path / "step-00000001.tmp").mkdir()
        archive.write(1, [ArchiveRow(episode=played(), outcome="trained")])
        wait_until(lambda: archive._trouble != "")
        (tmp_path / "step-00000001.tmp").rmdir()
    assert pq.read_table(tmp_path / "step-00000001.parquet").num_rows == 2
    late = EpisodeArchive(tmp_path, deadline_s=0.2)
    (tmp_path / "step-00000002.tmp").mkdir()
    late.write(2, [ArchiveRow(episode=played(), outcome="trained")])
    with pytest.raises(Fault, match=r"not written 1 file in 0\.2 s .*collective_s|could not write: .*directory"):
        late.flush()


def test_columns_must_fit_the_episode(tmp_path):
    with EpisodeArchive(tmp_path) as archive:
        with pytest.raises(ValueError, match="1 values for 2 steps"):
            archive.write(1, [ArchiveRow(episode=played(), outcome="trained", columns={"advantage": [1.0]})])
        with pytest.raises(ValueError, match="no column 'adventage'"):
            archive.write(1, [ArchiveRow(episode=played(), outcome="trained", columns={"adventage": [1.0, 2.0]})])
