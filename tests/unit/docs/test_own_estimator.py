"""The estimator and the state key of docs/tasks/own-estimator.md work as printed."""

import json
import re
import sys
from pathlib import Path

import pytest

from deploy.cli import main
from learner.credit.registry import keys_read, make_options
from learner.credit.state_keys import keys_of_group

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy/explorer"))

from explorer_run import make_group

PAGE = (Path(__file__).parents[3] / "docs/tasks/own-estimator.md").read_text()
GROUP = """{"episodes": [{"steps": [{"state": "hall", "reward": 0}, {"state": "kitchen", "reward": 1}]}]}"""


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module `mine` as the page prints it, in the folder where commands start."""
    (tmp_path / "mine.py").write_text("\n\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("printed")
def test_the_estimator_of_the_page_gives_each_step_its_return_above_the_level(capsys):
    Path("episodes.jsonl").write_text(GROUP)
    assert main(["credit", "episodes.jsonl", "--estimator", "mine:Above", "--level", "0.25", "--gamma", "0.5",
                 "--table"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(row[2], float(row[-1])) for row in rows[1:3]] == [("hall", 0.25), ("kitchen", 0.75)]


@pytest.mark.usefixtures("printed")
def test_an_option_without_a_default_is_given_on_the_command_line(capsys):
    Path("episodes.jsonl").write_text(GROUP)
    Path("mine.py").write_text(Path("mine.py").read_text().replace("Field(default=0.0, ge=0)", "Field(ge=0)"))
    command = ["credit", "episodes.jsonl", "--estimator", "mine:Above", "--table"]
    assert main([*command, "--level", "1"]) == 0
    assert capsys.readouterr().out.split()[-1] == "0.0%"
    assert main(command) == 2
    assert "option level is not set" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    assert "The level. (required; for your own estimator)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("printed")
def test_the_state_key_of_the_page_pools_observations_of_about_the_same_length():
    group = make_group(1)
    keys = keys_of_group(group, make_options(state_key="mine:Length", unit=7)).steps
    lengths = [len(step.observation) // 7 for episode in group for step in episode.steps]
    flat = [key for row in keys for key in row]
    assert len(set(lengths)) > 1
    assert [flat.index(key) for key in flat] == [lengths.index(length) for length in lengths]


@pytest.mark.usefixtures("printed")
def test_an_option_that_a_variant_of_gagpo_adds_has_an_effect_and_no_warning(capsys):
    """It scaled the numbers, and the command said that it does nothing."""
    Path("two.jsonl").write_text("".join((
        '{"episodes": [{"steps": [{"state": "S", "reward": 1}, {"state": "T", "reward": 0}]}, ',
        '{"steps": [{"state": "S", "reward": 0}]}]}')))

    def credit(*options: str) -> list[float]:
        assert main(["credit", "two.jsonl", "--estimator", *options]) == 0
        printed = capsys.readouterr()
        assert "does nothing" not in printed.err
        return [x for row in json.loads(printed.out)["advantages"] for x in row]

    plain, scaled = credit("gagpo"), credit("mine:Cautious", "--blame", "0.1")
    assert scaled == pytest.approx([0.1 * x if x < 0 else x for x in plain])
    assert min(plain) < 0 < max(plain)
    assert "blame" in keys_read(make_options(estimator="mine:Cautious"))
    assert "blame" not in keys_read(make_options(estimator="mine:Above"))
