"""Mistakes on the command lines of lab/ end in one line, as those of `gagpo` do."""

from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.runs.configs import load_config
from lab.bench.__main__ import main as bench
from lab.experiments.__main__ import main as experiments
from lab.simulation.__main__ import main as simulation
from services.config.file import dump_config

Main = Callable[[list[str]], int]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts in a folder with the run `mine`, which has not trained yet."""
    monkeypatch.chdir(tmp_path)
    config = load_config("alfworld-tiny", ["name=mine"])
    dump_config(config, config.run_dir / "config.yaml")
    Path("empty.json").touch()


@pytest.mark.parametrize(("main", "arguments", "line"), [
    (simulation, ["--config", "alfworld-tiny", "--figures", "runs"], "runs has no figures (Is a directory); make one "
     "by `python -m lab.simulation --from RUN --json`, whose `figures` it has"),
    (simulation, ["--config", "alfworld-tiny", "--from", "mine", "--from", "runs/mine"],
     "a run is given twice; name each run once"),
    (experiments, ["tabular", "--out", "empty.json"], "empty.json cannot be written (Not a directory: "
     "CWD/empty.json); name a folder that you may write to with --out"),
    (experiments, ["gradient", "--out", "runs", "--runs", "mine", "mine"], "a run is given twice; name each run once"),
    (bench, ["soak", "--sessions", "x=3"], "there is no environment 'x'; set env.name to one of alfworld, webshop, "
     "search, scienceworld, guess, or to module:attribute of your own"),
])
def test_a_mistake_is_one_line(main: Main, arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", f"error: {line.replace('CWD', str(Path.cwd()))}\n")


def test_a_wrong_value_of_an_option_is_named(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        bench(["soak", "--minutes", "-1"])
    assert "argument --minutes: it must be above 0, not -1" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"x": ' * 100_000, "null", "\x00", '{"turns": [-1]}'])
def test_damaged_figures_are_one_line(text: str, capsys: pytest.CaptureFixture[str]):
    Path("gpu.json").write_text(text)
    assert simulation(["--config", "alfworld-tiny", "--figures", "gpu.json"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
