"""The audit of runs that a real learner trained with a real Redis."""

import pytest
from learner_tiny import make_config
from loop_tiny import STEPS, Crash, issue, play, run

from deploy.commands.audit import read_journal
from deploy.runs.audit import audit
from deploy.runs.folder import RunFolder
from services.config.tree import Config
from services.controller.skip import REASON, skip_step
from services.records import Drop
from services.store.store import Store

CONFIG = Config.model_validate(make_config(staleness=STEPS).model_dump() | {"steps": STEPS})


@pytest.fixture
def store(redis_url, request):
    return Store(redis_url, request.node.name)


def states(result):
    return [(fate.state, fate.step) for fate in result.fates]


def test_a_finished_run_is_clean_with_its_store_and_without(store, model_path, rank_group, tmp_path):
    """Group 1 is dropped before any of its episodes was finished; a crash and a replay change nothing."""
    issue(store, range(2))
    store.drop(store.leases.acquire("controller", "c"), Drop(group="train/00000001", task="t/1", reason="env: away"))
    play(store, range(2, 2 * STEPS + 1))
    with pytest.raises(Crash):
        run(store, tmp_path, model_path, rank_group, crash_at=3)
    run(store, tmp_path, model_path, rank_group)
    expected = [("trained", 1), ("dropped", 1), ("trained", 1), *(("trained", n // 2) for n in range(4, 10))]
    for journal in (store.steps.journal(), None):
        result = audit(RunFolder(tmp_path), CONFIG, journal)
        assert result.findings == []
        assert states(result) == expected
        assert result.fates[1].reason == "env: away"
        assert set(result.fates[0].tickets.values()) == {"played"}
        assert [fate.age for fate in result.fates if fate.state == "trained"] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_run_that_goes_on_has_groups_in_flight(store, model_path, rank_group, tmp_path):
    """After a crash at step 3 its manifest is written, groups 6 and 7 are ready, 8 is unfinished."""
    play(store, range(2 * STEPS))
    with pytest.raises(Crash):
        run(store, tmp_path, model_path, rank_group, crash_at=3)
    issue(store, [8])
    result = audit(RunFolder(tmp_path), CONFIG, store.steps.journal())
    assert result.findings == []
    assert states(result) == [*(("trained", 1 + n // 2) for n in range(6)), *[("in flight", None)] * 3]
    alone = audit(RunFolder(tmp_path), CONFIG, None)
    assert (alone.findings, len(alone.fates)) == ([], 4)
    assert "groups after number 3 are not judged" in alone.notes[0]


def test_skipped_groups_are_explained(store, model_path, rank_group, tmp_path):
    play(store, range(2 * STEPS))
    with pytest.raises(Crash):
        run(store, tmp_path, model_path, rank_group, crash_at=3)
    skip_step(store, store.leases.acquire("controller", "c"), 3, keep=lambda _: None)
    play(store, [8, 9])
    run(store, tmp_path, model_path, rank_group)
    result = audit(RunFolder(tmp_path), CONFIG, None)
    assert result.findings == []
    assert [(fate.group, fate.step) for fate in result.fates if fate.reason == REASON] == [
        ("train/00000004", 3), ("train/00000005", 3)]


def test_a_store_that_knows_nothing_of_the_run_is_not_asked(redis_url, tmp_path):
    folder = RunFolder(tmp_path)
    folder.identity_file.write_text('{"run": "unknown"}')
    config = CONFIG.model_copy(update={"redis": CONFIG.redis.model_copy(update={"url": redis_url})})
    assert read_journal(folder, config) is None
    assert read_journal(folder, CONFIG) is None
