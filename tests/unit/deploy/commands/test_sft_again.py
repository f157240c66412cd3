"""`gagpo train --cold-start` into a folder that has something in it."""

import pytest

from deploy.cli import parse
from deploy.training import cold_start
from services.errors import UserError


@pytest.fixture
def again(monkeypatch, tmp_path):
    """Provides again(*names), which runs the command with these folders and files there. Returns what it trained."""
    def run(*names):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("{}")
        trained = []

        def trains(config, out, **_):
            trained.append(out.exists() and list(out.iterdir()))
            out.mkdir(exist_ok=True)
            (out / "sft.json").write_text("{}")
            return out

        monkeypatch.setattr(cold_start, "cold_start", trains)
        args = parse(["train", "--config", "alfworld-tiny", "--cold-start", str(tmp_path / "model")])
        assert args.run(args) == 0
        return trained
    return run


def test_a_model_that_was_half_written_is_written_again(again):
    """Its process died while rank 0 wrote it, and the states are there."""
    assert again("model/model.safetensors", ".model.ranks/state-00000007/meta.json") == [False]


@pytest.mark.parametrize("names", [
    ("model/model.safetensors",), ("model/model.safetensors", ".model.ranks/rows.npz"),
    ("model/sft.json", "model/model.safetensors", ".model.ranks/state-00000007/meta.json")])
def test_any_other_folder_stays_as_it_is(again, tmp_path, names):
    with pytest.raises(UserError, match="model is not empty; give a new folder with --cold-start"):
        again(*names)
    assert (tmp_path / "model/model.safetensors").exists()
