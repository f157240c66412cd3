"""The page made from what runs left in their folders."""

import json
import math
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from deploy.cli import main
from deploy.report.figures import FIGURES, evaluation_lines, moving_average
from deploy.report.page import _before_and_after, write_report
from deploy.report.runs import applicable, compare_runs, read_run
from deploy.runs.comparison import compare
from services.errors import UserError
from services.telemetry.evaluations import TRAINED
from services.telemetry.metrics_file import METRIC_KEYS, append_row
from tests.unit.deploy.report.conftest import make

PICTURES = {*FIGURES, "evaluation", "advantage-distribution"}


def cells(text: str) -> list[str]:
    return re.findall(r"<t[dh]>(.*?)</t[dh]>", text)


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """Provides the page of an ordinary run of three steps, which trains with gagpo."""
    folder = make(tmp_path_factory.mktemp("runs") / "<tiny>", credit={"estimator": "gagpo"}, curves=True)
    return write_report([folder], folder)[0]


def test_the_page_of_one_run_holds_tables_figures_facts_and_config(page):
    folder, text = page.parent, page.read_text()
    assert page == folder / "report.html"
    assert {path.stem for path in (folder / "figures").glob("*.png")} == PICTURES | {"comparison"}
    assert text.count("data:image/png;base64,") == len(PICTURES) + 1
    assert "after RL" in text
    assert "<td>After RL minus before RL</td><td>1</td><td>+100.0</td>" in text
    assert "<th>learner steps</th><td>3 of 3</td>" in text
    assert "<th>cold-start minutes</th><td>3</td>" in text
    assert "<th>tokens</th><td>0 sampled, 0 trained</td>" in text
    assert "GPU hours" not in text
    assert "<th>held-out games</th><td>2 of heldout, digest 0123456789abcdef</td>" in text
    assert "name: &lt;tiny&gt;" in text
    assert "<meta name=format content=2>" in text
    assert not re.search(r"(src|href)=.?http", text)
    assert not list(folder.glob(".report*"))


def test_the_page_opens_with_the_verdict_and_the_figure_of_before_and_after(page):
    text = page.read_text()
    verdict = "<p class=verdict>0% -&gt; 100% at T=1, +100 points [-68, 100], no difference shown"
    places = [text.index(part) for part in (verdict, 'alt="comparison"', "<th>learner steps</th>")]
    assert places == sorted(places)
    assert text.index('alt="comparison"') < text.index('alt="success"')


def test_repeated_games_have_a_table_of_the_best_of_k():
    row = {"label": TRAINED, "step": 5, "temperature": 1.0, "tasks": 2, "success_rate": 0.5, "success_low": 0.2,
           "success_high": 0.8, "success_by_task": {"a": 0.5, "b": 0.5}}
    best = {"pass_at": {"2": 1.0}, "pass_at_low": {"2": 0.25}, "pass_at_high": {"2": 1.0}}
    plain, repeated = (cells(_before_and_after(found)) for found in map(compare, ([row], [row | best])) if found)
    assert "pass@2 100.0% [25.0%, 100.0%]" in repeated
    assert not any("pass@" in cell for cell in plain)


def test_scores_by_several_rules_have_a_table():
    row = {"label": TRAINED, "step": 5, "temperature": 1.0, "tasks": 2, "success_rate": 0.5, "success_low": 0.2,
           "success_high": 0.8, "success_by_task": {"a": 0.5, "b": 0.5}}
    rules = {"score_by_rule": {"strict": 0.5}, "full_score_by_rule": {"strict": 0.25}}
    plain, several = (cells(_before_and_after(table)) for table in map(compare, ([row], [row | rules])) if table)
    assert "strict: score 0.5, full score 25.0%" in several
    assert not any("full score" in cell for cell in plain)


def test_state_groups_and_advantages_are_tables(page):
    """Step 1 has -2, -.5, .5, 2, step 3 -6, -.5, .5, 2: quartiles -.875 and .875, and -1.875 and .875."""
    sizes = cells(page.read_text().partition("Steps by the size")[2])
    assert sizes[:14] == ["arm", "seeds", "alone", "2 to 4", "5 to 8", "above 8", "mean size",
                          "&lt;tiny&gt;", "1", "10.0%", "10.0%", "10.0%", "10.0%", "0.1"]
    advantages = cells(page.read_text().partition("<h2>Normalised advantages")[2])
    assert advantages[5:10] == ["&lt;tiny&gt;", "1.75", "50.0%", "2.75", "50.0%"]


def test_every_column_of_the_results_is_explained_or_says_itself_what_it_is(page):
    results = page.read_text().partition("<h2>Results")[2].partition("</table>")[0]
    note, said = results.partition("</p>")[0], {"arm", "seeds", "&lt;tiny&gt;", "1", "held-out", "heldout at 0"}
    titles = [title for title in re.findall(r"<th>(.*?)</th>", results) if title not in said]
    assert len(titles) == 8
    assert [title for title in titles if f"{title}: " not in note] == []
    assert "last 3" not in note  # it has no such column


@pytest.mark.parametrize(("parallel", "hours"), [({"tensor_parallel": 4}, "10.00"), ({}, "4.00")])
def test_gpu_hours_count_every_gpu_of_a_sampler(run, parallel: dict[str, int], hours: str):
    """An hour of two workers with four GPUs each, or one, and of two ranks. A config of before has no such key."""
    folder = run("gpus")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({
        **config, "learner": {"gpus": 1, "ranks": 2}, "rollout": {"gpus": 1, "workers": 2, **parallel}}))
    (folder / "metrics.jsonl").unlink()
    append_row(folder / "metrics.jsonl", {
        **dict.fromkeys(METRIC_KEYS, 0.1), **{key: 0.0 for key in METRIC_KEYS if key.startswith("seconds/")}, "step": 1,
        "version": "1.1", "seconds/wait": 3600.0})
    assert f"<th>GPU hours of RL</th><td>{hours}</td>" in write_report([folder], folder)[0].read_text()


def test_a_cold_start_is_told_in_what_it_was_counted_in(run):
    """Epochs take the place of minutes."""
    for number, (sft, fact) in enumerate((({"enabled": True, "minutes": 3.0, "epochs": 5}, "epochs</th><td>5</td>"),
                                          ({"enabled": False, "minutes": 3.0}, "minutes</th><td>none</td>"))):
        folder = run(f"run-{number}")
        config = yaml.safe_load((folder / "config.yaml").read_text())
        (folder / "config.yaml").write_text(yaml.safe_dump({**config, "sft": sft}))
        text = write_report([folder], folder)[0].read_text()
        assert re.findall("<th>cold-start (.*?</td>)", text) == [fact]


def test_advantages_are_shown_at_chosen_steps(run):
    """At step n the archive has -2n, -1/2, 1/2 and 2. The quartiles are -1/2 - (2n - 1/2) / 4 and 7/8."""
    folder = run("one")
    text = write_report([folder], folder, [1, 3])[0].read_text()
    advantages = cells(text.partition("<h2>Normalised advantages")[2])
    assert advantages[:5] == ["arm", "step 1: IQR", "step 1: beyond 1", "step 3: IQR", "step 3: beyond 1"]
    assert advantages[5:10] == ["one", "1.75", "50.0%", "2.75", "50.0%"]
    assert "first quarter" not in text
    with pytest.raises(UserError, match="no archive of learner step 4"):
        write_report([folder], folder, [4])


def test_a_step_that_is_not_there_leaves_no_folder(run, tmp_path):
    with pytest.raises(UserError, match="no archive of learner step 4"):
        write_report([run("one")], tmp_path / "out", [4])
    assert not (tmp_path / "out").exists()


def test_state_groups_by_key_are_read_from_the_archive(run):
    """Four turns of one group: "N" is said twice, with unlike lists. Older archives have no row."""
    folder = run("one")
    for file in (folder / "episodes").glob("*.parquet"):
        file.unlink()
    pq.write_table(pa.table({
        "advantage": [0.0] * 4, "group": ["g"] * 4, "observation": ["N", "N", "A", "A"],
        "choices": ["1", "2", "3", "3"],
        "state_key": ["k"] * 4, "state": [""] * 4}), folder / "episodes/step-00000001.parquet")
    page = cells(write_report([folder], folder)[0].read_text().partition("States by key")[2])
    assert page[7:35] == [
        "one", "the run&#x27;s own", "0.0%", "100.0%", "0.0%", "0.0%", "4.0",
        "one", "observation", "0.0%", "100.0%", "0.0%", "0.0%", "2.0",
        "one", "normalized", "0.0%", "100.0%", "0.0%", "0.0%", "2.0",
        "one", "observation+admissible", "50.0%", "50.0%", "0.0%", "0.0%", "1.3"]
    assert "States by key" not in write_report([older := run("older")], older)[0].read_text()


def test_generated_games_are_labelled_and_official_ones_not(run):
    label = "these results are not results on alfworld."
    generated, official = run("generated", env="alfworld-gen"), run("official")
    assert label in write_report([generated], generated)[0].read_text()
    assert label not in write_report([official], official)[0].read_text()


def test_a_folder_without_results_still_makes_a_page(run):
    folder = run("young", steps=0, panel=False)
    for name in ("evaluations.jsonl", "summary.json"):
        (folder / name).unlink()
    text = write_report([folder], folder)[0].read_text()
    assert "Before and after" not in text
    assert "<img" not in text


def test_torn_lines_replayed_steps_and_null_spoil_nothing(run):
    folder = run("torn", panel=False, curves=True)
    append_row(folder / "metrics.jsonl", {**dict.fromkeys(METRIC_KEYS, 0.1), "step": 3, "grad_norm": float("nan")})
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        with (folder / name).open("a") as file:
            file.write('{"format": 1, "st')
    text = write_report([folder], folder)[0].read_text()
    assert text.count("<img") == len(PICTURES)
    assert "Before and after" not in text


def test_several_runs_are_arms_with_intervals_over_seeds(run, tmp_path, capsys):
    """Training areas .2, .4 and .3, .7: the arms' means, their pairs' difference, and what sets them apart."""
    folders = [run(f"{name}-seed{seed}", seed=seed, success=success, credit={"estimator": name}, curves=True)
               for name, seed, success in (("gagpo", 0, 0.3), ("gagpo", 1, 0.7), ("gigpo", 0, 0.2), ("gigpo", 1, 0.4))]
    out = tmp_path / "compared"
    assert main(["report", *map(str, folders), "--out", str(out), "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["runs"] == {"gagpo": [str(f) for f in folders[:2]], "gigpo": [str(f) for f in folders[2:]]}
    assert numbers["arms"]["gagpo"]["area"]["mean"] == pytest.approx(0.5)
    (difference,) = numbers["differences"]
    assert (difference["a"], difference["b"]) == ("gigpo", "gagpo")
    assert difference["area"]["mean"] == pytest.approx(-0.2)
    assert difference["area"]["high"] == pytest.approx(-0.2 + 12.7062 * 0.1, abs=1e-4)
    assert "share_2_4" in numbers["arms"]["gigpo"]
    text = (out / "report.html").read_text()
    assert cells(text.partition("Cost of each run")[2])[:4] == [
        "run", "RL minutes", "tokens", "gagpo-seed0"]
    assert cells(text.partition("What differs")[2])[3:6] == ["learner.credit.estimator", "gagpo", "gigpo"]
    assert {path.stem for path in (out / "figures").glob("*.png")} == PICTURES | {"heldout"}


def test_of_many_runs_the_results_come_first_and_seeds_are_in_order(run, tmp_path):
    """150 runs had two screens of folders and 150 lines of costs before their results, with seed 10 before seed 2."""
    given = sorted([run(f"mine-seed{seed}", seed=seed, steps=1) for seed in (*range(12), 20)])
    page, numbers = write_report(given, tmp_path / "compared")
    text = page.read_text()
    assert re.findall("<h2>([^<]*)", text)[0] == "Results"
    assert re.findall("<h2>([^<]*)", text)[-1] == "Cost of each run"
    assert cells(text)[3:6] == ["mine", "0-11, 20", f"{tmp_path}/mine-seed0 … {tmp_path}/mine-seed20 (13 runs)"]
    assert re.findall("mine-seed[0-9]+", text.partition("Cost of each run")[2]) == [
        f"mine-seed{seed}" for seed in (*range(12), 20)]
    assert [path.rpartition("seed")[2] for path in numbers["runs"]["mine"]] == [*map(str, range(12)), "20"]


def test_runs_of_one_name_are_told_by_their_folders_in_the_costs(run, tmp_path):
    folders = [run("here/mine", seed=0), run("there/mine", seed=1), run("other", seed=2)]
    text = write_report(folders, tmp_path / "compared")[0].read_text()
    names = cells(text.partition("Cost of each run")[2])[3::3]
    assert names == [*map(str, folders[:2]), "other"]


def test_curves_of_runs_of_unlike_length_are_compared_over_the_steps_that_all_have(run, tmp_path):
    """One run has a fourth step in which it won everything. Over three steps both have .2: a whole curve had .4."""
    short, long = run("mine-seed0", seed=0, success=0.2), run("mine-seed1", seed=1, success=0.2)
    told = ("The runs do not have the same learner steps. Curves and the columns made from them are of the 3 that all "
            "have")
    page, numbers = write_report([short, long], tmp_path / "alike")
    assert told not in page.read_text()
    append_row(long / "metrics.jsonl", {**dict.fromkeys(METRIC_KEYS, 0.1), "step": 4, "version": "1.4",
                                        "success_rate": 1.0})
    page, cut = write_report([short, long], tmp_path / "unlike")
    assert told in page.read_text()
    assert cut["arms"]["mine"]["area"] == numbers["arms"]["mine"]["area"]
    assert cut["arms"]["mine"]["area"]["mean"] == pytest.approx(0.2)


def test_one_config_and_seed_twice_is_refused(run, capsys):
    assert main(["report", str(run("a")), str(run("b"))]) == 2
    assert "have one config and one seed" in capsys.readouterr().err
    assert main(["report", str(run("c")), str(run("d").parent / "c")]) == 2
    assert "given twice" in capsys.readouterr().err


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err


def test_a_curve_is_smoothed_with_the_values_before_it():
    """1; 0.5 · 1 + 0.5 · 3; 0.5 · 2 + 0.5 · 5."""
    assert moving_average([1.0, 3.0, 5.0], smoothing=0.5) == [1.0, 2.0, 3.5]
    assert moving_average([math.nan, 1.0, math.nan, 3.0], smoothing=0.5)[1:] == [1.0, 1.0, 2.0]


def test_an_archive_file_that_cannot_be_read_is_named_on_the_page(run):
    folder = run("torn")
    (folder / "episodes/step-00000002.parquet").write_bytes(b"PAR1 torn")
    page, _ = write_report([folder], folder)
    assert "episodes/step-00000002.parquet cannot be read" not in page.read_text(), "neither first nor last quarter"
    (folder / "episodes/step-00000003.parquet").write_bytes(b"PAR1 torn")
    page, _ = write_report([folder], folder)
    assert "episodes/step-00000003.parquet cannot be read and is left out" in page.read_text()


def test_evaluations_at_two_temperatures_are_two_lines(run):
    """A run that went on with another eval.temperature has no fall between them."""
    folder = run("walk", panel=False)
    for step, temperature in ((2, 1.0), (4, 0.4), (6, 0.4)):
        append_row(folder / "evaluations.jsonl", {
            "label": f"step-{step:06d}", "step": step, "temperature": temperature, "split": "heldout", "tasks": 1,
            "success_rate": 0.5, "success_low": 0.4, "success_high": 0.6, "success_by_task": {"a": 0.5}})
    compared = compare_runs([read_run(folder)])
    lines = evaluation_lines(compared.records, compared.arms)
    assert [(line.title, line.points) for line in lines] == [
        ("walk, 1 game of heldout, T=1", [(0, 0.0, 0.0, 0.0), (2, 0.5, 0.4, 0.6)]),
        ("walk, 1 game of heldout, T=0.4", [(4, 0.5, 0.4, 0.6), (6, 0.5, 0.4, 0.6)])]


def test_warnings_about_a_run_stand_below_its_verdict(run):
    folder = run("ailing", credit={"estimator": "gagpo"})
    assert "class=warning>Warning" not in write_report([folder], folder)[0].read_text()
    append_row(folder / "metrics.jsonl",
               {**dict.fromkeys(METRIC_KEYS, 0.1), "step": 4, "version": "1.4", "grad_norm": 0.0})
    text = write_report([folder], folder)[0].read_text()
    assert text.index("<p class=verdict>") < text.index("<p class=warning>Warning: ") < text.index('alt="comparison"')


def test_only_the_keys_that_apply_are_shown():
    given = {"env.name": "alfworld", "env.alfworld.engine": "own", "env.webshop.seed": 3, "sft.enabled": False,
             "sft.minutes": 3.0, "learner.critic.lr": 1e-5, "learner.credit.estimator": "grpo",
             "learner.credit.lam": 0.8, "learner.credit.statistics": "rows"}
    assert sorted(applicable(given)) == ["env.alfworld.engine", "env.name", "learner.credit.estimator",
                                         "learner.credit.statistics", "sft.enabled"]
    unknown = given | {"learner.credit.estimator": "of another version"}
    assert applicable(unknown) == unknown
