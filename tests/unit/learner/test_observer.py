"""The lines that a learner writes, and those that it drops when it continues a run, beside a folder that is away."""


import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from learner import observer as observer_file
from learner.observer import Observer, columns_by_env, columns_by_type, metrics_row
from learner.trainer import StepReport
from services.records import Drop, Episode, Manifest, Step, Ticket, Version, VersionSpan
from services.telemetry.metrics_file import METRIC_TEXTS, append_row, read_rows


def test_rows_of_lost_steps_are_dropped_once_the_folder_is_back(tmp_path: Path):
    """A link to itself cannot be read, as a file of a shared folder that is away."""
    file, aside = tmp_path / "metrics.jsonl", tmp_path / "aside"
    for step in (1, 2, 3):
        append_row(file, {"step": step})
    file.rename(aside)
    file.symlink_to(file)
    threading.Timer(0.3, aside.rename, [file]).start()
    Observer(metrics=file, patience_s=60.0).restored(2, incarnation=1, has_checkpoint=True, durable=0.0)
    assert [row["step"] for row in read_rows(file)] == [1, 2]


def test_a_line_is_written_once_the_folder_is_back(tmp_path: Path):
    ledger = tmp_path / "ledger.jsonl"
    ledger.symlink_to(ledger)
    threading.Timer(0.3, ledger.unlink).start()
    observer = Observer(metrics=tmp_path / "metrics.jsonl", patience_s=60.0)
    observer.forgotten(4, next_group=9, incarnation=2)
    assert [(row["step"], row["reset_to_group"]) for row in read_rows(ledger)] == [(4, 9)]


def test_the_seconds_of_a_step_are_its_wall_time_from_row_to_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first step waits 3 s, trains 5, waits 2 for the evaluation and publishes 1; its checkpoint takes 4 s of the
    second step, which then takes as long. Nobody times the training here."""
    now = [100.0]
    monkeypatch.setattr(observer_file.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(observer_file, "metrics_row", lambda _, manifest, __, measured, seconds: {
        "step": manifest.step, **measured, **{f"seconds/{phase}": value for phase, value in seconds.items()}})
    monkeypatch.setattr(observer_file, "check_metrics", lambda _: None)
    monkeypatch.setattr(observer_file, "set_meters", lambda *_: None)
    observer = Observer(metrics=tmp_path / "metrics.jsonl")

    def after(seconds: float, moment: Callable[..., object], *arguments: object, **options: object) -> None:
        now[0] += seconds
        moment(*arguments, **options)

    for step in (1, 2):
        report = StepReport(metrics={}, credits=[], logprobs=[], utilization=None)
        after(4.0 * (step - 1), observer.waiting)
        after(3.0, observer.training, Manifest(step=step, incarnation=1, groups=[], drops=[]), ())
        after(5.0, observer.trained, report, replayed=False)
        after(2.0, observer.publishing)
        after(1.0, observer.published, Version(incarnation=1, step=step))
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [[row[key] for key in ("step_seconds", "seconds/wait", "seconds/evaluation", "seconds/publish",
                                  "seconds/checkpoint")] for row in rows] == [
        [11.0, 3.0, 2.0, 1.0, 0.0], [15.0, 3.0, 2.0, 1.0, 4.0]]


VERSION = Version(incarnation=1, step=2)


def step(prompt: int, response: int, *, cut: bool = False) -> Step:
    return Step(observation="", prompt_ids=np.zeros(prompt, np.int32), response_ids=np.zeros(response, np.int32),
                logprobs=np.zeros(response, np.float32), spans=[VersionSpan(version=VERSION, start=0, end=response)],
                action="go", valid=not cut, admissible=True, reward=0.0, cut=cut)


def episode(k: int, *steps: Step) -> Episode:
    ticket = Ticket(group="train/00000001", k=k, size=2, task="t", seed=1, kind="train", temperature=1.0, max_steps=4,
                    task_type="pick")
    return Episode(ticket=ticket, steps=list(steps), won=k == 0, end="turns", worker="w", attempt=1, seconds=1.0,
                   engine="e")


def test_tokens_of_a_turn_and_cut_answers_are_over_the_turns_trained_on():
    group = [episode(0, step(10, 4), step(16, 8, cut=True)), episode(1, step(10, 2), step(12, 6))]
    row = metrics_row(VERSION, Manifest(step=3, incarnation=1, groups=["train/00000001"], drops=[]), [group],
                      {}, {})
    assert (row["cut_share"], row["invalid_share"]) == (0.25, 0.25)
    assert (row["prompt_tokens_mean"], row["prompt_tokens_max"]) == (12, 16)
    assert (row["response_tokens_mean"], row["response_tokens_max"]) == (5, 8)
    assert set(row) <= set(METRIC_TEXTS)


def test_columns_by_type_count_the_groups_that_dynamic_sampling_replaced_and_no_other_drop():
    """A trained group of pick, won by 1 of 2; a replaced one of pick, won by all; one of cool that was too old."""
    uniform = Drop(group="train/00000000", task="t", task_type="pick", reason="uniform reward 10", episodes=2, wins=2)
    old = Drop(group="train/00000002", task="u", task_type="cool", reason="over-age", episodes=2, wins=1)
    manifest = Manifest(step=3, incarnation=1, groups=["train/00000001"], drops=[uniform, old])
    assert columns_by_type(manifest, [[episode(0, step(10, 4)), episode(1, step(10, 2))]]) == {
        "type/pick/groups": 2, "type/pick/success": 0.75, "type/pick/contrast": 0.5}


def test_columns_by_environment_are_over_the_same_groups():
    """Two games of `t`: a trained one, won by 1 of 2, and a replaced one, won by all; one of `u` was too old."""
    uniform = Drop(group="train/00000000", task="t/9", task_type="pick", reason="uniform reward 10", episodes=2, wins=2)
    old = Drop(group="train/00000002", task="u/1", task_type="cool", reason="over-age", episodes=2, wins=1)
    manifest = Manifest(step=3, incarnation=1, groups=["train/00000001"], drops=[uniform, old])
    assert columns_by_env(manifest, [[episode(0, step(10, 4)), episode(1, step(10, 2))]]) == {
        "env/t/groups": 2, "env/t/success": 0.75, "env/t/contrast": 0.5}
