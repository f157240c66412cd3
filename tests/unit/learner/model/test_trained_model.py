"""Updates that are taken or skipped, and folders from which no model can be loaded."""

import errno
import math
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from learner.model.loading import empty_model
from learner.model.trained_model import MAX_SKIPPED, MOMENTS, HostAdamW, TrainedModel
from services.config.tree import LearnerSection
from services.errors import LearnerFault, UserError


def trained_model():
    return TrainedModel(nn.Linear(2, 1, bias=False), LearnerSection(grad_clip=1.0), lr=0.5)


def backward(made, gradient):
    (made.model.weight * torch.tensor(gradient)).sum().backward()


def test_an_update_reports_the_norm_before_clipping_and_clears_the_gradient():
    made = trained_model()
    before = made.model.weight.detach().clone()
    backward(made, [3.0, 4.0])
    assert made.update() == pytest.approx(5)
    assert made.model.weight.grad is None
    assert (made.model.weight - before).abs().min() > 0.4  # Adam's first step is the learning rate, whatever the norm


def test_a_gradient_that_is_not_finite_moves_nothing_and_three_in_a_row_are_a_fault():
    made = trained_model()
    before = made.model.weight.detach().clone()
    for _ in range(MAX_SKIPPED - 1):
        backward(made, [math.nan, 1.0])
        assert math.isnan(made.update())
    assert torch.equal(made.model.weight, before)
    backward(made, [1.0, 1.0])
    made.update()
    assert made.skipped_in_a_row == 0
    for _ in range(MAX_SKIPPED - 1):
        backward(made, [math.inf, 1.0])
        made.update()
    backward(made, [math.inf, 1.0])
    with pytest.raises(LearnerFault, match="not finite in 3 updates in a row"):
        made.update()


def test_a_checkpoint_before_the_first_update_that_is_not_skipped_changes_none_of_the_next():
    plain, saved, resumed = trained_model(), trained_model(), trained_model()
    for made in (saved, resumed):
        made.model.load_state_dict(plain.model.state_dict())
    resumed.load(deepcopy(saved.state()))
    for made in (plain, saved, resumed):
        for gradient in ([3.0, 4.0], [0.1, -0.2]):
            backward(made, gradient)
            made.update()
    assert torch.equal(saved.model.weight, plain.model.weight)
    assert torch.equal(resumed.model.weight, plain.model.weight)


def test_loaded_moments_never_pass_through_the_device():
    """torch's meta device has room for nothing: what passes through it is lost."""
    weight = nn.Parameter(torch.ones(3))
    before = HostAdamW([weight])
    weight.grad = torch.tensor([1.0, 2.0, 3.0])
    before.step()
    after = HostAdamW([nn.Parameter(torch.ones(3, device="meta"))])
    after.load_state_dict(before.state_dict())
    (found,), (expected,) = after.state.values(), before.state.values()
    assert found["step"] == 1
    for name in MOMENTS:
        assert torch.equal(found[name], expected[name])


def test_a_learner_on_the_cpu_of_a_machine_with_gpus_leaves_them_alone(monkeypatch):
    """To wait for a GPU takes half a GB of its memory for a context."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("a GPU was used"))
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    HostAdamW([weight]).step()
    assert (weight < 1).all()


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


@pytest.mark.parametrize("data", [b"", b"cut", (2).to_bytes(8, "little") + b"{}more"])
def test_a_damaged_file_of_weights_is_named_with_what_to_do(folder: Path, data: bytes):
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(UserError, match=r"holds no causal language model \(Error while .*; set model.path to a folder"):
        empty_model(folder, "eager")


def test_a_folder_without_a_models_files_is_named_with_what_to_do(folder: Path):
    with pytest.raises(UserError, match=r"holds no causal language model .*; set model.path to a folder with"):
        empty_model(folder, "eager")
    (folder / "config.json").unlink()
    for empty in (folder, folder / "nothing"):
        with pytest.raises(UserError, match=r"\(\[Errno 2\] No such file or directory: '.*/config.json'\); set"):
            empty_model(empty, "eager")
