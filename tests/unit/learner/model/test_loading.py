"""A folder without a model is a user's mistake. A disk that fails under a model is not."""

import errno
from pathlib import Path

import pytest
from transformers import LlamaConfig

from learner.model.loading import empty_model
from services.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The config of a tiny model, without weights."""
    LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=8,
                pad_token_id=0, bos_token_id=1, eos_token_id=2).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_is_there_and_cannot_be_opened_is_no_users_mistake(folder: Path, name: str):
    """As on a shared storage with a stale handle. transformers and safetensors would say that there is no such file."""
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(name)
    with pytest.raises(OSError, match=name) as caught:
        empty_model(folder, "eager")
    assert caught.value.errno == errno.ELOOP


def test_a_file_that_cannot_be_read_is_no_users_mistake(folder: Path):
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/proc/self/mem")  # nothing is mapped at its start
    with pytest.raises(OSError, match="Input/output error"):
        empty_model(folder, "eager")


def test_a_folder_without_a_models_files_is_named_with_what_to_do(folder: Path):
    with pytest.raises(UserError, match=r"holds no causal language model .*; set model.path to a folder with"):
        empty_model(folder, "eager")
    (folder / "config.json").unlink()
    for empty in (folder, folder / "nothing"):
        with pytest.raises(UserError, match=r"\(\[Errno 2\] No such file or directory: '.*/config.json'\); set"):
            empty_model(empty, "eager")
