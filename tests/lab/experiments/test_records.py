"""The content of a run's record, and the conditions under which two records are comparable."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from deploy.runs.configs import load_config
from deploy.runs.policies import folder_digest
from lab.experiments.credit import records
from services.config.file import lay_over
from services.config.tree import Config
from services.errors import UserError
from services.telemetry.metrics_file import METRIC_KEYS, append_row


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config("credit-experiment", [f"runs_dir={tmp_path}"])


def test_a_finished_run_becomes_a_few_kilobytes(tmp_path: Path, config: Config):
    """Curves of 5 digits; of the evaluations, those after steps of RL, a digit per game."""
    run = tmp_path / "run"
    run.mkdir()
    for step in (1, 2):
        row = dict.fromkeys(METRIC_KEYS, 1 / 3) | {"step": step, "seconds/wait": 2.5, "version": "1.1"}
        append_row(run / "metrics.jsonl", row | {"grad_norm": None if step == 2 else 123456.7})
    for label, step, split, wins in (("step-000000", 0, "valid_seen", {"v": 1.0}),
                                     ("step-000002", 2, "valid_seen", {"v": 1.0}),
                                     ("panel-cold", 0, "heldout", {"a": 0.0, "b": 0.0, "c": 0.0}),
                                     ("panel-trained", 2, "heldout", {"a": 0.5, "c": 1.0})):
        append_row(run / "evaluations.jsonl", {
            "label": label, "step": step, "split": split, "temperature": 1.0, "tasks": len(wins), "dropped": 0,
            "episodes": len(wins) * (1 if split == "valid_seen" else 2),
            "success_rate": 2 / 3, "episode_length": 10.0, "success_by_type": {"pick": 2 / 3},
            "success_by_task": wins})
    common = {"cold_start": "digest", "panels": {"valid_seen": ["v"], "heldout": ["a", "b", "c"]}}
    record = records.record_of(run, arm="grpo", config=config, minutes=2.0, code="k", common=common)
    assert record.curves["success_rate"] == [0.33333, 0.33333]
    assert record.curves["grad_norm"] == [123460.0, None]
    assert {"credit/advantage_iqr", "credit/share_above_one", "credit/singleton_share"} <= record.curves.keys()
    assert record.seconds["wait"] == 5.0
    assert [(row["label"], row["wins"]) for row in record.evaluations] == [
        ("step-000002", "1"), ("panel-trained", "1-2")]
    out = tmp_path / "grpo-seed0.json"
    records.write(out, record)
    assert records.read_records(tmp_path) == [record]
    assert out.stat().st_size < 5000


def test_settings_do_not_depend_on_where_a_run_goes_on(config: Config):
    moved = lay_over(config, {"name": "b", "seed": 4, "rollout.threads": 2, "model.path": "m", "sft.enabled": False,
                              "env.data": "d"})
    assert records.settings_of(moved) == records.settings_of(config)
    records.same_settings(records.settings_of(config), moved, where="x.json")


def test_settings_are_what_differs_from_the_defaults(config: Config):
    """So that a key which a later version adds makes no old record another experiment's."""
    settings = records.settings_of(config)
    assert settings["steps"] == config.steps
    assert settings["learner.credit.state_key"] == "prompt"
    assert "learner.credit.gamma" not in settings
    assert "learner.credit.lam" not in settings


def test_other_settings_are_refused_by_name(config: Config):
    settings = records.settings_of(config)
    with pytest.raises(UserError, match=r"x\.json was made with learner\.lr=0\.0004, and now it is 0\.001"):
        records.same_settings(settings, lay_over(config, {"learner.lr": 1e-3}), where="x.json")


def test_a_model_is_known_by_its_files(tmp_path: Path):
    assert folder_digest(tmp_path) == ""
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    before = folder_digest(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"abd")
    assert len({before, folder_digest(tmp_path), ""}) == 3


def test_a_broken_record_is_named(tmp_path: Path):
    (tmp_path / "gagpo-seed0.json").write_text(json.dumps({"arm": "gagpo"}))
    with pytest.raises(UserError, match=r"gagpo-seed0\.json is not the record of a run"):
        records.read_records(tmp_path)


def test_a_record_is_written_a_line_a_part(tmp_path: Path, record):
    records.write(tmp_path / "one.json", record("gagpo", 0, 0.5))
    text = (tmp_path / "one.json").read_text()
    assert json.loads(text) == asdict(record("gagpo", 0, 0.5))
    assert len(text.splitlines()) == len(asdict(record("gagpo", 0, 0.5))) + 2
