"""A model's folder is marked as complete once all of it is on the disk."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from deploy.training.cold_start import _save
from learner.checkpoints.export import write_export, write_safetensors
from learner.checkpoints.file_facts import digests


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Provides the names of the files and folders that were flushed to disk, in order."""
    names: list[str] = []
    flush = os.fsync

    def fsync(handle: int) -> None:
        names.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        flush(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return names


def test_an_export_is_on_the_disk_before_its_config_marks_it_as_complete(tmp_path: Path, synced: list[str]):
    (tmp_path / "like").mkdir()
    (tmp_path / "like" / "config.json").write_text("{}")
    (tmp_path / "like" / "tokenizer.json").write_text("{}")
    write_export(tmp_path / "model", {"weight": torch.zeros(3)}, like=tmp_path / "like", dtype="float32")
    config = next(index for index, name in enumerate(synced) if "config.json" in name)
    assert {"model.safetensors", "tokenizer.json"} <= set(synced[:config])
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.json"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_written_as_safetensors_writes_them_and_hashed_meanwhile(tmp_path: Path, dtype: torch.dtype):
    tensors = {"model.b.weight": torch.randn(3, 5).to(dtype).T, "model.a.weight": torch.randn(7).to(dtype),
               "scale": torch.tensor(2.0, dtype=dtype), "none": torch.zeros(0, 3, dtype=dtype)}
    digest = write_safetensors(tmp_path / "ours", tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "theirs",
              metadata={"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert digest == digests(tmp_path, ["theirs"])["theirs"]


def test_a_trained_model_keeps_the_ends_of_answers_and_not_its_base_models_sampling(tmp_path: Path):
    """vLLM's server and transformers take penalties and truncation from the folder, and runs sample without them."""
    like = tmp_path / "like"
    like.mkdir()
    (like / "config.json").write_text("{}")
    (like / "generation_config.json").write_text(json.dumps({
        "bos_token_id": 1, "eos_token_id": [2, 3], "repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8}))
    write_export(tmp_path / "model", {"weight": torch.zeros(3)}, like=like, dtype="float32")
    assert json.loads((tmp_path / "model/generation_config.json").read_text()) == {
        "bos_token_id": 1, "eos_token_id": [2, 3]}


def test_the_model_of_a_cold_start_is_on_the_disk_before_sft_json_is_written(tmp_path: Path, synced: list[str]):
    class Saved:
        def save_pretrained(self, folder: Path) -> None:
            (folder / "model.safetensors").write_text("weights")

    _save(Saved(), Saved(), tmp_path)
    assert "model.safetensors" in synced
