"""A config with an estimator and a state key of the user's own is compared with others by changing these two keys."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from deploy.runs.configs import lay_over, load_config
from learner.credit.estimator import WithinGroup
from learner.credit.options import RecursionOptions
from services.config.tree import Config
from services.errors import UserError


class Above(WithinGroup):
    """An estimator with one option of its own, and one that shipped estimators have too."""

    class Options(RecursionOptions):
        level: float = 0.0

    def group(self, group, options):
        raise NotImplementedError


class Higher(Above):
    """An estimator with the same option."""


class Length:
    """A state key with an option."""

    class Options(BaseModel):
        unit: int = 10

    knows_cuts = False

    def keys(self, group, options):
        raise NotImplementedError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text(f"base: alfworld-tiny\nlearner: {{credit: {{estimator: '{__name__}:Above', level: 0.5, lam: 0.25, "
                    f"state_key: '{__name__}:Length', unit: 7}}}}\n")
    return path


def changed(file: Path, way: str, **values: str) -> Config:
    """The config of the file with changed keys of learner.credit, on the command line or by an experiment."""
    dotted = {f"learner.credit.{name}": value for name, value in values.items()}
    if way == "laid over":
        return lay_over(load_config(file, ["name=mine"]), dotted)
    return load_config(file, ["name=mine", *(f"{key}={value}" for key, value in dotted.items())])


@pytest.mark.parametrize("way", ["command line", "laid over"])
def test_another_estimator_leaves_options_of_the_former_one_out_and_keeps_the_others(file: Path, way: str):
    credit = changed(file, way, estimator="gagpo").learner.credit.model_dump()
    assert "level" not in credit
    assert (credit["lam"], credit["unit"]) == (0.25, 7)
    both = changed(file, way, estimator="gagpo", state_key="observation").learner.credit.model_dump()
    assert {"level", "unit"} & both.keys() == set()


@pytest.mark.parametrize("way", ["command line", "laid over"])
def test_a_key_at_a_default_gets_the_default_of_the_next_estimator(tmp_path: Path, way: str):
    """GAGPO's γ is 0.95 and its broadcast 0, CRBC's 0.98 and 1. A value of the user's own stays."""
    file = tmp_path / "plain.yaml"
    file.write_text("base: alfworld-tiny\nlearner: {credit: {ddof: 0, penalty: 0.3}}\n")
    credit = changed(file, way, estimator="crbc").learner.credit
    assert (credit.gamma, credit.broadcast, credit.statistics, credit.ddof, credit.penalty) == (
        0.98, 1.0, "trajectories", 0, 0.3)
    assert changed(file, way, estimator="crbc", gamma="0.95", broadcast="0").learner.credit.model_dump().items() >= {
        "gamma": 0.95, "broadcast": 0.0, "statistics": "trajectories"}.items()


@pytest.mark.parametrize("way", ["command line", "laid over"])
def test_an_option_that_the_next_estimator_has_too_is_kept(file: Path, way: str):
    credit = changed(file, way, estimator=f"{__name__}:Higher").learner.credit.model_dump()
    assert (credit["level"], credit["unit"]) == (0.5, 7)


@pytest.mark.parametrize("way", ["command line", "laid over"])
def test_an_option_that_is_given_with_an_estimator_that_has_none_is_refused(file: Path, way: str):
    with pytest.raises(UserError, match=r"^unknown key learner\.credit\.level: the estimator gagpo has none of this"):
        changed(file, way, estimator="gagpo", level="1")


def test_a_key_that_neither_estimator_has_is_refused(file: Path):
    file.write_text(file.read_text().replace("level: 0.5", "levle: 0.5"))
    with pytest.raises(UserError, match=r"^unknown key learner\.credit\.levle: the estimator gagpo has none of this"):
        changed(file, "command line", estimator="gagpo")
