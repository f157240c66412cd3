"""The training loop over a real Redis: its results, exports, and that a crash in any phase changes no bit."""

import argparse
import json

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from learner_tiny import make_config, weights
from loop_tiny import STEPS, Crash, play, run
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from deploy.commands import export as command_export
from deploy.runs.policies import resolve
from learner import loop
from learner.checkpoints.checkpoint import Checkpoints
from learner.cold_start.scratch_model import END
from learner.trainer import Learner
from services.config.file import dump_config
from services.config.redis import RedisSection
from services.config.tree import Config
from services.errors import StoreFault, UserError
from services.store.lease import Lease
from services.store.step_log import StepLog
from services.store.store import Store
from services.telemetry.logs import configure_logs
from services.telemetry.metrics_file import METRIC_KEYS, append_row, check_metrics, read_metrics, read_rows
from services.weights.pack import pack_folder, unpack


@pytest.fixture(scope="module")
def uninterrupted(redis_url, model_path, rank_group, tmp_path_factory):
    folder, store = tmp_path_factory.mktemp("whole"), Store(redis_url, "whole")
    play(store, range(2 * STEPS))
    return folder, store, *run(store, folder, model_path, rank_group)


def test_the_files_that_a_run_leaves(uninterrupted):
    folder, store, _, published, replaced = uninterrupted
    assert [version.step for version, _ in published] == list(range(STEPS + 1))
    assert replaced == [version for version, _ in published[:-1]]
    assert len({version.digest for version, _ in published}) == STEPS + 1
    pointer, path = store.state.version()
    assert pointer == published[-1][0]
    assert path == str(folder / "checkpoints" / "step-00000004" / "hf")
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    check_metrics({key: value for key, value in rows[0].items() if key != "format"})
    assert set(METRIC_KEYS) < set(rows[0])
    assert rows[3]["staleness_max"] == 3
    assert Checkpoints(folder / "checkpoints", 1).steps() == [4]
    assert store.counts().retired_step == STEPS
    assert store.retained_bytes() == 0
    table = pq.read_table(folder / "episodes" / "step-00000001.parquet").to_pylist()
    assert {row["group"] for row in table} == {"train/00000000", "train/00000001"}
    assert all(row["advantage"] is not None and len(row["state_key"]) == 32 for row in table)
    assert all(row["raw_advantage"] is not None and row["prompt_tokens"] == len(row["prompt_ids"]) for row in table)
    differences = [abs(mine - theirs) for row in table
                   for mine, theirs in zip(row["learner_logprobs"], row["logprobs"], strict=True)]
    assert np.mean(differences) == pytest.approx(rows[0]["logprob_difference_mean"], rel=1e-5)
    assert sum(row["env_steps"] for row in rows[:1]) == len(table)


def test_bodies_outside_redis_change_no_bit_and_none_is_left(uninterrupted, redis_url, model_path, rank_group,
                                                             tmp_path):
    """A body that is lost after its manifest ends the life of the learner; nothing is trained on the rest."""
    bodies = tmp_path / "bodies"
    bodies.mkdir()
    store = Store(redis_url, "elsewhere", settings=RedisSection(bodies=bodies.as_uri()))
    play(store, range(2 * STEPS))
    with pytest.raises(Crash):
        run(store, tmp_path, model_path, rank_group, crash_at=1)
    lost = next((bodies / "elsewhere").glob("train-00000000#0.*"))
    kept = lost.rename(tmp_path / lost.name)
    with pytest.raises(StoreFault, match="3 episodes of train/00000000 can be read"):
        run(store, tmp_path, model_path, rank_group)
    kept.rename(lost)
    learner, _, _ = run(store, tmp_path, model_path, rank_group)
    whole = weights(uninterrupted[2])
    assert all(torch.equal(tensor, whole[name]) for name, tensor in weights(learner).items())
    assert list((bodies / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("crash_at", [0, 1, 3])
def test_a_crash_changes_no_bit(uninterrupted, redis_url, model_path, rank_group, tmp_path, crash_at):
    """After the manifest and the update, before publication; step 3 lies beyond the checkpoint of step 2."""
    store = Store(redis_url, f"crash-{crash_at}")
    play(store, range(2 * STEPS))
    with pytest.raises(Crash):
        run(store, tmp_path, model_path, rank_group, crash_at=crash_at)
    learner, published, _ = run(store, tmp_path, model_path, rank_group)
    assert {version.incarnation for version, _ in published} == {2}
    whole = weights(uninterrupted[2])
    assert all(torch.equal(tensor, whole[name]) for name, tensor in weights(learner).items())
    assert published[-1][0].digest == uninterrupted[3][-1][0].digest
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]


@pytest.mark.parametrize(("leave_at", "durable"), [("waiting 0", []), ("waiting 3", [3]), ("publishing 3", [])])
def test_asked_to_leave_it_makes_what_it_has_published_durable_and_goes_on_bit_for_bit(
        uninterrupted, redis_url, model_path, rank_group, tmp_path, leave_at, durable):
    """Checkpoints are otherwise made at the last step alone. A step that is not published is replayed."""
    store, sections = Store(redis_url, f"leave-{leave_at}"), {"checkpoint": {"every": 100, "keep": 1}}
    play(store, range(2 * STEPS))
    run(store, tmp_path, model_path, rank_group, leave_at=leave_at, **sections)
    assert Checkpoints(tmp_path / "checkpoints", 1).steps() == durable
    assert store.counts().retired_step == max(durable, default=0)
    learner, published, _ = run(store, tmp_path, model_path, rank_group, **sections)
    assert [version.step for version, _ in published] == list(range(max(durable, default=0), STEPS + 1))
    whole = weights(uninterrupted[2])
    assert all(torch.equal(tensor, whole[name]) for name, tensor in weights(learner).items())
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]


def test_a_learner_that_parks_its_states_while_it_waits_leaves_and_goes_on_bit_for_bit(
        uninterrupted, redis_url, model_path, rank_group, tmp_path):
    """It makes the checkpoint of its leave from host memory."""
    store = Store(redis_url, "offloads")
    play(store, range(2 * STEPS))
    first, _, _ = run(store, tmp_path, model_path, rank_group, offloads=True, leave_at="waiting 3")
    assert (first.step, Checkpoints(tmp_path / "checkpoints", 1).latest().step) == (3, 3)
    _, published, _ = run(store, tmp_path, model_path, rank_group, offloads=True)
    assert [version.digest for version, _ in published] == [
        version.digest for version, _ in uninterrupted[3][-2:]]


def test_a_crash_right_after_a_checkpoint_loses_no_line_of_metrics(redis_url, model_path, rank_group, tmp_path,
                                                                   monkeypatch):
    """Nothing replays a step that has its checkpoint."""
    store = Store(redis_url, "lines")
    play(store, range(2 * STEPS))
    with monkeypatch.context() as patch:
        patch.setattr(store.steps, "retire", lambda *_: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            run(store, tmp_path, model_path, rank_group)
    assert Checkpoints(tmp_path / "checkpoints", 1).steps() == [2]
    run(store, tmp_path, model_path, rank_group)
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]


def files_of(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_an_evaluated_step_has_its_weights_on_disk_and_no_checkpoint(
        uninterrupted, redis_url, model_path, rank_group, tmp_path):
    """Evaluated: 3 and the last. The crash comes as step 4 would be published. The next life trains steps 1 to 3 again,
    to the bit, and leaves the weights of step 3 alone once they are evaluated."""
    store, sections = Store(redis_url, "evaluated"), {"checkpoint": {"every": 100, "keep": 1}, "eval": {"every": 3}}
    play(store, range(2 * STEPS))
    with pytest.raises(Crash):
        run(store, tmp_path, model_path, rank_group, crash_at=4, **sections)
    checkpoints = Checkpoints(tmp_path / "checkpoints", 1)
    written = files_of(tmp_path / "checkpoints")
    assert {"weights-00000003/hf/model.safetensors", "weights-00000003/meta.json"} < set(written)
    assert {name.rpartition("/")[0] for name in written} == {"weights-00000003", "weights-00000003/hf"}
    assert store.state.version()[1] == str(tmp_path / "checkpoints" / "weights-00000003" / "hf")
    checkpoints.check_weights(3)
    exported = load_file(tmp_path / "checkpoints" / "weights-00000003" / "hf" / "model.safetensors")
    published = unpack(*(getattr(uninterrupted[3][3][1], part) for part in ("manifest", "buffer")))
    assert all(torch.equal(tensor, published[name]) for name, tensor in exported.items())
    checkpoints.record_score(3, 0.5)
    store.state.mark_evaluated(store.leases.acquire("controller", "c"), 3)
    before = (tmp_path / "checkpoints" / "weights-00000003" / "meta.json").stat().st_mtime_ns
    learner, _, _ = run(store, tmp_path, model_path, rank_group, **sections)
    assert (checkpoints.steps(), checkpoints.weights_steps()) == ([4], [3, 4])
    assert (tmp_path / "checkpoints" / "weights-00000003" / "meta.json").stat().st_mtime_ns == before
    whole = weights(uninterrupted[2])
    assert all(torch.equal(tensor, whole[name]) for name, tensor in weights(learner).items())


def test_log_and_ledger_tell_what_the_learner_did(redis_url, model_path, rank_group, tmp_path):
    """A first life up to the publication of step 3, and a second that replays it. The ledger has each step once with
    its manifest: steps 1 and 2 are in the checkpoint, and the line of step 3 comes from the replay."""
    store = Store(redis_url, "told")
    play(store, range(2 * STEPS))
    configure_logs(tmp_path, process="learner-0", show=None)
    with pytest.raises(Crash):
        run(store, tmp_path, model_path, rank_group, crash_at=3)
    assert [row["step"] for row in read_rows(tmp_path / "ledger.jsonl")] == [1, 2]
    run(store, tmp_path, model_path, rank_group)
    assert [{key: row[key] for key in ("step", "incarnation", "groups", "drops")}
            for row in read_rows(tmp_path / "ledger.jsonl")] == [
        msgspec.to_builtins(manifest) for manifest in store.steps.manifests(0)]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    told = {name: [line for line in lines if line["event"] == name] for name in (line["event"] for line in lines)}
    assert [line["step"] for line in told["no checkpoint"] + told["restored"]] == [0, 2]
    assert [(line["step"], line["replayed"]) for line in told["step trained"]] == [
        (1, False), (2, False), (3, False), (3, True), (4, False)]
    assert [line["step"] for line in told["checkpoint written"]] == [2, 4]
    assert [line["version"] for line in told["published"]] == ["1.0", "1.1", "1.2", "2.2", "2.3", "2.4"]
    assert all(line["bytes"] > 0 for line in told["episodes retired"])


class StepsKilledAtReset(StepLog):
    def reset_to(self, lease: Lease, step: int, next_group: int, *, trained: int | None = None) -> None:
        raise Crash


class KilledAtReset(Store):
    """A store whose learner dies when it is about to reset it."""

    def __init__(self, url: str, run: str) -> None:
        super().__init__(url, run)
        self.steps = StepsKilledAtReset(self.connection)


def test_an_emptied_redis_goes_on_from_the_checkpoint(redis_url, model_path, rank_group, tmp_path):
    """The store is reset to the checkpoint of step 2: groups from 4 on are issued again, and the incarnation keeps
    growing."""
    store = Store(redis_url, "lost")
    play(store, range(2 * STEPS))
    with pytest.raises(Crash):
        run(store, tmp_path, model_path, rank_group, crash_at=3)
    with pytest.raises(Crash):
        run(KilledAtReset(redis_url, "lost-emptied"), tmp_path, model_path, rank_group)
    assert read_rows(tmp_path / "ledger.jsonl")[-1]["reset_to_group"] == 4, "an audit must know of a reset"
    empty = Store(redis_url, "lost-emptied")
    with pytest.raises(Crash):
        run(empty, tmp_path, model_path, rank_group, crash_at=2)
    assert empty.counts().next_group == 4
    assert read_rows(tmp_path / "ledger.jsonl")[-1]["reset_to_group"] == 4
    play(empty, range(4, 2 * STEPS))
    _, published, _ = run(empty, tmp_path, model_path, rank_group)
    assert [version.step for version, _ in published] == [2, 3, 4]
    assert published[0][0].incarnation > 1


def test_a_version_that_redis_has_lost_is_named_again(redis_url, model_path, rank_group, tmp_path, monkeypatch):
    """Redis loses its last second if its machine dies. Without the version no worker plays and no evaluation begins."""
    monkeypatch.setattr(loop, "LOOK_EVERY_S", 0.0)
    store, named = Store(redis_url, "lost-version"), []

    def redis_loses_it(check):
        store.connection.redis.hdel(store.connection.key("counters"), "version")
        check()
        named.append(store.state.version()[0])

    play(store, range(2 * STEPS))
    _, _, replaced = run(store, tmp_path, model_path, rank_group, meanwhile=redis_loses_it)
    assert named == replaced
    assert len(named) == STEPS


def test_export_gives_the_learners_weights(uninterrupted, tmp_path, capsys):
    """`gagpo export` of the last checkpoint: transformers reads it like any folder, and its card says what it is."""
    folder, _, learner, _, _ = uninterrupted
    config = Config(name="mine", steps=4, env={"prompt": "compact"}, rollout={"max_response_tokens": 17})
    dump_config(config, folder / "config.yaml")
    (folder / "run.json").write_text("{}")
    append_row(folder / "evaluations.jsonl", {
        "label": "panel-trained", "step": 4, "version": "1.4", "split": "heldout", "temperature": 0.4, "tasks": 8,
        "success_rate": 0.75, "success_low": 0.41, "success_high": 0.93, "env": "toy"})
    parser = argparse.ArgumentParser()
    command_export.add_arguments(parser)

    def export(*arguments):
        return command_export.run(parser.parse_args([*map(str, arguments)]))

    assert export(folder, tmp_path / "out", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"step": 4, "path": str(tmp_path / "out")}
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(tensor, found[name]) for name, tensor in weights(learner).items())
    text = AutoTokenizer.from_pretrained(tmp_path / "out")
    generation = GenerationConfig.from_pretrained(tmp_path / "out")
    assert generation.eos_token_id == sorted(text.convert_tokens_to_ids([END, "</action>"]))
    assert (generation.max_new_tokens, generation.top_k, generation.temperature) == (17, 0, config.eval.temperature)
    card = (tmp_path / "out" / "README.md").read_text()
    for told in ("`mine`, learner step 4", "75.0% [41.0%, 93.0%] on 8 tasks of `heldout` (toy)", "`compact`",
                 "`</action>`", "17 tokens"):
        assert told in card
    played, policy = resolve(tmp_path / "out", None, {})
    assert (played.name, played.env, policy.folder) == ("mine", config.env, tmp_path / "out")
    for arguments, match in [((folder, tmp_path / "out"), "exists"), ((tmp_path, tmp_path / "x"), "not the folder"),
                             ((folder, tmp_path / "x", "--which", "2"), "one of the steps kept: 4"),
                             ((folder, tmp_path / "x", "--which", "best"), "no checkpoint 'best'")]:
        with pytest.raises(UserError, match=match):
            export(*arguments)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_has_the_digest_of_what_was_published(any_model_path, rank_group, tmp_path, dtype):
    """In both dtypes, tied and untied. The initial policy's folder, stored in float32, has the digest too."""
    config = make_config()
    config = config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})})
    learner = Learner(config, any_model_path, rank_group)
    published = learner.pack()
    assert {entry.dtype for entry in published.manifest} == {dtype}
    learner.export(tmp_path)
    assert pack_folder(tmp_path, dtype).digest == published.digest
    assert pack_folder(any_model_path, dtype).digest == published.digest
