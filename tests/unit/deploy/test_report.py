"""The page made from what a run left in its folder."""

import re
from pathlib import Path

from deploy.report import CURVES, moving_average, write_report
from services.metrics import METRIC_KEYS, append_row


def fill(folder: Path, *, steps: int = 3, panel: bool = True) -> None:
    """What a run of `steps` steps writes."""
    (folder / "config.yaml").write_text("name: <tiny>\n")
    for step in range(1, steps + 1):
        append_row(folder / "metrics.jsonl", {**dict.fromkeys(METRIC_KEYS, 0.1), "step": step, "version": f"1.{step}"})
    labels = ["step-000000", "panel-cold", "panel-trained"] if panel else ["step-000000"]
    for label in labels:
        won = 1.0 if label == "panel-trained" else 0.0
        append_row(folder / "evaluations.jsonl", {
            "label": label, "step": 0, "temperature": 1.0, "split": "heldout", "tasks": 2, "success_rate": won,
            "success_low": won, "success_high": won, "success_by_task": {"a": won, "b": won}})


def test_the_page_holds_table_curves_facts_and_config(tmp_path: Path):
    fill(tmp_path)
    page = write_report(tmp_path, env="alfworld", facts={"learner steps": "3 & more"})
    text = page.read_text()
    assert page == tmp_path / "report.html"
    assert {path.stem for path in (tmp_path / "figures").glob("*.png")} == {
        *(name for name, _, _ in CURVES), "evaluation", "comparison"}
    assert text.count("data:image/png;base64,") == len(CURVES) + 2
    assert "after RL" in text
    assert "RL minus before (cold start)</td><td>1</td><td>+100.0%" in text
    assert "<td>3 &amp; more</td>" in text
    assert "name: &lt;tiny&gt;" in text
    assert "<meta name=format content=1>" in text
    assert not re.search(r"(src|href)=.?http", text)
    assert not list(tmp_path.glob(".report*"))


def test_generated_games_are_labelled_and_official_ones_not(tmp_path: Path):
    fill(tmp_path)
    label = "these figures are not those of alfworld."
    assert label in write_report(tmp_path, env="alfworld-gen", facts={}).read_text()
    assert label not in write_report(tmp_path, env="alfworld", facts={}).read_text()


def test_a_folder_without_results_still_makes_a_page(tmp_path: Path):
    text = write_report(tmp_path, env="alfworld", facts={}).read_text()
    assert "Before and after" not in text
    assert "<img" not in text


def test_torn_lines_replayed_steps_and_null_spoil_nothing(tmp_path: Path):
    fill(tmp_path, panel=False)
    append_row(tmp_path / "metrics.jsonl", {**dict.fromkeys(METRIC_KEYS, 0.1), "step": 3, "grad_norm": float("nan")})
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        with (tmp_path / name).open("a") as file:
            file.write('{"format": 1, "st')
    text = write_report(tmp_path, env="alfworld", facts={}).read_text()
    assert text.count("<img") == len(CURVES) + 1
    assert "Before and after" not in text


def test_the_average_trails():
    """Over two: 1, (1 + 3) / 2, (3 + 5) / 2."""
    assert moving_average([1.0, 3.0, 5.0], window=2) == [1.0, 2.0, 4.0]
