"""Checkpoints are whole or not there, and work beside the loop reports its end and its errors to the loop."""

import json
import os
import threading

import pytest
from torch.distributed.checkpoint.api import CheckpointException

from learner.checkpoints import file_facts
from learner.checkpoints.background import Background
from learner.checkpoints.checkpoint import Checkpoints, Position, hold
from learner.checkpoints.file_facts import HashedFile, digests
from services.errors import DeadlineExceeded, LearnerFault, LeaseLost, UserError
from services.files import Damaged


def position(step):
    return Position(step=step, incarnation=1, next_group=2 * step, trained=2 * step)


def commit(checkpoints, step, text="x"):
    (checkpoints.draft(step) / "data").write_text(text)
    return checkpoints.commit(position(step))


def kept(folder, *steps):
    checkpoints = Checkpoints(folder, keep=9)
    for step in steps:
        commit(checkpoints, step)
    return checkpoints


def test_latest_is_what_was_committed_last(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.latest() is None
    assert checkpoints.newest_intact() is None
    folder = commit(checkpoints, 3)
    assert (folder / "data").read_text() == "x"
    assert Checkpoints(tmp_path, keep=2).latest() == position(3)
    assert Checkpoints(tmp_path, keep=2).newest_intact() == position(3)


def test_a_commit_that_met_a_full_disk_can_be_made_again(tmp_path):
    """A folder in the place of the pointer has the effect of a full disk: its checkpoint has its name already."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    (tmp_path / "latest.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        commit(checkpoints, 3)
    (tmp_path / "latest.json").rmdir()
    assert checkpoints.commit(position(3)) == checkpoints.folder(3)
    assert checkpoints.newest_intact() == position(3)


def test_the_newest_and_the_best_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step, score in ((1, 0.3), (2, 0.9), (3, 0.5), (4, 0.9), (5, 0.1)):
        commit(checkpoints, step)
        checkpoints.record_score(step, score)
    assert checkpoints.steps() == [2, 4, 5]
    assert checkpoints.best() == 2


def weigh(checkpoints, step):
    (checkpoints.draft(step) / "data").write_text("x")
    return checkpoints.commit_weights(position(step))


def test_weights_alone_are_nothing_that_a_run_continues_from(tmp_path):
    checkpoints = kept(tmp_path, 1)
    assert weigh(checkpoints, 2) == checkpoints.weights_folder(2) == tmp_path / "weights-00000002"
    assert checkpoints.latest() == checkpoints.newest_intact() == position(1)
    assert (checkpoints.steps(), checkpoints.weights_steps()) == ([1], [1, 2])
    checkpoints.check_weights(2)
    flip(tmp_path / "weights-00000002" / "data")
    with pytest.raises(Damaged, match="weights-00000002/data is not as it was written"):
        checkpoints.check_weights(2)


def test_the_best_weights_are_kept_and_those_to_which_a_run_may_go_back(tmp_path):
    """Evaluated: each step; checkpoints: 3 and 6. Until step 6 has its checkpoint, the run may go back to step 3: then
    step 2 is the best again."""
    checkpoints, found = Checkpoints(tmp_path, keep=1), {}
    for step, score in ((1, 0.3), (2, 0.6), (3, 0.5), (4, 0.7), (5, 0.8), (6, 0.1), (7, 0.2), (8, 0.3)):
        commit(checkpoints, step) if step in (3, 6) else weigh(checkpoints, step)
        checkpoints.record_score(step, score)
        found[step] = [path.name.replace("0000000", "") for path in sorted(checkpoints.folders())]
    assert found == {
        1: ["weights-1"], 2: ["weights-1", "weights-2"], 3: ["step-3", "weights-2"],
        4: ["step-3", "weights-2", "weights-4"], 5: ["step-3", "weights-2", "weights-4", "weights-5"],
        6: ["step-6", "weights-5"], 7: ["step-6", "weights-5", "weights-7"], 8: ["step-6", "weights-5", "weights-8"]}


def test_a_step_that_gets_its_checkpoint_later_has_its_weights_once(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    weigh(checkpoints, 2)
    checkpoints.record_score(2, 0.5)
    commit(checkpoints, 2)
    assert checkpoints.folders() == [checkpoints.folder(2)] == [checkpoints.weights_folder(2)]
    assert checkpoints.best() == 2


def test_a_file_that_was_hashed_while_it_was_written_is_not_read_for_its_digest(tmp_path, monkeypatch):
    """Reading 61 GiB of an export again takes a minute. The chunks here are larger than any buffer."""
    checkpoints, read = Checkpoints(tmp_path, keep=1), []
    draft = checkpoints.draft(1)
    (draft / "small").write_text("x")
    with HashedFile(draft / "large") as file:
        for byte in b"ab":
            file.write(bytes([byte]) * (1 << 20))
    monkeypatch.setattr(file_facts, "digests", lambda _, names: (read.extend(names), digests(draft, names))[1])
    checkpoints.commit(position(1), {"large": file.digest})
    monkeypatch.undo()
    assert read == ["small"]
    assert checkpoints.check(1) == position(1)


def test_a_checkpoint_that_somebody_plays_by_is_kept_until_they_end(tmp_path):
    """`gagpo eval` of a run that trains takes longer to start than a small run takes for two steps."""
    checkpoints = Checkpoints(tmp_path, keep=1)

    def commit_model(step):
        export = checkpoints.draft(step) / "hf"
        export.mkdir()
        (export / "config.json").write_text("{}")
        checkpoints.commit(position(step))

    commit_model(1)
    with hold(checkpoints.folder(1)), hold(checkpoints.folder(1)):
        for step in (2, 3):
            commit_model(step)
            assert checkpoints.steps() == [1, step]
    commit_model(4)
    assert checkpoints.steps() == [4]
    with pytest.raises(FileNotFoundError):
        hold(checkpoints.folder(3))


def test_a_best_step_that_was_taken_again_has_its_new_score(tmp_path):
    """Step 2 was damaged and taken again from step 1, with other weights: 0.4 in place of 0.9. Step 3 won 0.6."""
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step, score in ((1, 0.3), (2, 0.9)):
        commit(checkpoints, step)
        checkpoints.record_score(step, score)
    for step, score, best in ((2, 0.4, 2), (3, 0.6, 3)):
        commit(checkpoints, step)
        checkpoints.record_score(step, score)
        assert checkpoints.best() == best


def test_scores_of_another_measure_do_not_compare(tmp_path):
    """The run went on after step 2 at a temperature at which it wins less: 0.6 is its best there. Scores of before
    the measure was kept (step 1) compare with any."""
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step, score, measure, best in ((1, 0.5, None, 1), (2, 0.9, ("valid", 1.0), 2), (3, 0.6, ("valid", 0.4), 3),
                                       (4, 0.5, ("valid", 0.4), 3)):
        commit(checkpoints, step)
        checkpoints.record_score(step, score, measure)
        assert checkpoints.best() == best


def test_a_score_without_its_checkpoint_is_a_fault(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    with pytest.raises(LearnerFault, match="step 7 was evaluated"):
        checkpoints.record_score(7, 1.0)
    assert checkpoints.best() is None


def test_a_torn_write_leaves_the_previous_one_in_force(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    commit(checkpoints, 1)
    (checkpoints.draft(2) / "data").write_text("half")
    again = Checkpoints(tmp_path, keep=1)
    assert again.latest() == position(1)
    assert again.steps() == [1]
    commit(again, 2)
    assert not list(tmp_path.glob(".tmp-*"))


@pytest.mark.parametrize("step", [2, 1], ids=["an older one", "its twin"])
def test_a_deletion_that_a_crash_ends_leaves_no_checkpoint_without_its_meta_json(tmp_path, monkeypatch, step):
    """The mirror of the run's folder took it for a folder that is away, so nothing was uploaded any more."""
    checkpoints = kept(tmp_path, 1)
    checkpoints.keep = 1

    def half(folder, **_):
        (folder / "meta.json").unlink(missing_ok=True)
        if folder.exists():
            raise KeyboardInterrupt

    (checkpoints.draft(step) / "data").write_text("y")
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", half)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.commit(position(step))
    assert [(tmp_path / f"step-{left:08d}" / "meta.json").exists() for left in checkpoints.steps()] == [True]
    commit(checkpoints, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest.json", "step-00000003"]


def test_a_replayed_step_replaces_its_twin(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    commit(checkpoints, 1, "old")
    assert (commit(checkpoints, 1, "new") / "data").read_text() == "new"


@pytest.mark.parametrize("pointer", ['{"format": 2, "step": 9}', "", "[" * 100_000, '{"step": "x"}', "\x00", "null"])
def test_a_pointer_to_nothing_falls_back_to_the_newest_that_is_there(tmp_path, pointer):
    checkpoints = kept(tmp_path, 1, 2)
    (tmp_path / "latest.json").write_text(pointer)
    (tmp_path / "best.json").write_text(pointer)
    assert checkpoints.latest() == checkpoints.newest_intact() == position(2)
    checkpoints.record_score(2, 0.5)
    assert checkpoints.best() == 2


def cut(file):
    file.write_bytes(file.read_bytes()[:-1])


def flip(file):
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])


def link(file):
    file.unlink()
    file.symlink_to("/dev/zero")


def add(file):
    (file.parent / "more.safetensors").write_text("")


@pytest.mark.attack
@pytest.mark.parametrize("name", ["data", "meta.json"])
@pytest.mark.parametrize("damage", [cut, flip, link, add, os.remove])
def test_a_damaged_newest_one_is_set_aside_for_the_newest_intact_one(tmp_path, name, damage):
    checkpoints = kept(tmp_path, 1, 2, 3)
    damage(checkpoints.folder(3) / name)
    assert checkpoints.newest_intact() == position(2)
    assert checkpoints.steps() == [1, 2]
    assert checkpoints.latest() == position(2)
    assert (tmp_path / "damaged-step-00000003").is_dir()


def away(file):
    """Puts the file aside. Reads of the link in its place end with EIO, as those of a shared folder that is away.

    Returns a function that puts it back.
    """
    aside = file.rename(file.parent.parent / f"aside-{file.name}")
    file.symlink_to("/proc/self/mem")
    return lambda: aside.rename(file)


def test_a_checkpoint_that_cannot_be_read_just_now_is_not_passed_over(tmp_path):
    checkpoints = kept(tmp_path, 1, 2)
    back = away(checkpoints.folder(2) / "meta.json")
    with pytest.raises(DeadlineExceeded, match=r"could not be read for 0 s \(\[Errno 5\] .*; learner.collective_s\)"):
        checkpoints.newest_intact()
    with pytest.raises(OSError, match="Errno 5"):
        checkpoints.latest()
    assert checkpoints.steps() == [1, 2]
    threading.Timer(0.2, back).start()
    assert checkpoints.newest_intact(wait_s=60) == checkpoints.latest() == position(2)


def test_where_none_is_whole_all_stay_and_one_line_says_so(tmp_path):
    checkpoints = kept(tmp_path, 1, 2)
    for step in (1, 2):
        flip(checkpoints.folder(step) / "data")
    with pytest.raises(UserError, match=r"are damaged \(.*step-00000002/data is not as it was written\)"):
        checkpoints.newest_intact()
    assert checkpoints.steps() == [1, 2]
    with pytest.raises(Damaged):
        checkpoints.check(1)


@pytest.mark.attack
def test_a_pickled_checkpoint_is_refused_and_its_step_is_still_told(tmp_path):
    """A run that was finished by an older version keeps its report; it cannot be made longer."""
    checkpoints = kept(tmp_path, 4)
    meta = checkpoints.folder(4) / "meta.json"
    meta.write_text(json.dumps({"format": 1, "position": json.loads(meta.read_text())["position"]}))
    assert checkpoints.latest() == position(4)
    with pytest.raises(UserError, match=r"in a format that runs code when it is loaded; start a run from its"):
        checkpoints.newest_intact()
    assert checkpoints.steps() == [4]


def background():
    return Background("checkpoint", deadline_s=60.0)


def fails(error):
    def work():
        raise error

    return work


def test_the_loop_goes_on_until_it_waits():
    told, go = [], threading.Event()
    with background() as beside:
        beside.start(lambda: go.wait(60) and told.append("first"))
        assert (beside.busy, told) == (True, [])
        beside.check()
        go.set()
        beside.start(lambda: told.append("second"))
    assert (beside.busy, told) == (False, ["first", "second"])


def test_an_error_is_raised_once_where_the_loop_looks():
    beside = background()
    beside.start(fails(LeaseLost("gone")))
    with pytest.raises(LeaseLost, match="gone"):
        beside.wait()
    beside.check()
    beside.start(fails(CheckpointException("some ranks", {0: (OSError("disk full"), None)})))
    with pytest.raises(LearnerFault, match=r"^checkpoint: .+"):
        beside.wait()


def test_the_end_of_the_block_raises_it_too_but_never_in_the_place_of_the_blocks_own():
    with pytest.raises(OSError, match="disk full"), background() as beside:
        beside.start(fails(OSError("disk full")))
    with pytest.raises(KeyError, match="the loop's"):
        its_own_error()


def its_own_error():
    with background() as beside:
        beside.start(fails(OSError("disk full")))
        raise KeyError("the loop's")


def test_background_work_beyond_its_deadline_is_an_error():
    go, beside = threading.Event(), Background("checkpoint", deadline_s=0.01)
    beside.start(lambda: go.wait(60))
    with pytest.raises(DeadlineExceeded, match=r"not done in 0\.01 s \(learner\.collective_s\)"):
        beside.wait()
    go.set()
