"""The learner's state on disk: what is written comes back to the bit, and nothing that a folder brings is run."""


import pickle
import tracemalloc
from pathlib import Path

import pytest
import torch

from learner.checkpoints import state_files
from learner.checkpoints.file_facts import digests
from learner.checkpoints.state_files import HostCopy, load_state, read_tensors, save_state
from services.errors import LearnerFault


class Canary:
    """Unpickled, it leaves a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def state(fill):
    weights = torch.full((4, 3), fill)
    return {"model": {"w": weights}, "optimizer": {"state": {"w": {"step": torch.tensor(fill)}},
            "param_groups": [{"lr": 0.1}]}, "random": torch.full((5,), int(fill), dtype=torch.uint8)}


def test_tensors_come_back_in_place_and_settings_stay(tmp_path):
    saved = state(2.0)
    saving = save_state(saved, tmp_path)
    saved["model"]["w"].zero_()  # training goes on: what is written is the copy
    saved["random"].zero_()
    assert saving.result(60) == digests(tmp_path, [path.name for path in tmp_path.iterdir()])
    found = state(0.0)
    load_state(found, tmp_path)
    assert (found["model"]["w"] == 2).all()
    assert found["optimizer"]["state"]["w"]["step"] == 2
    assert (found["random"] == 2).all()
    assert found["optimizer"]["param_groups"] == [{"lr": 0.1}]
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors"}


def test_writing_takes_no_more_memory_than_two_of_its_files(tmp_path, monkeypatch):
    """In one file, a state was held three times: 255 GiB of a host's memory for 7 billion parameters, not 85."""
    monkeypatch.setattr(state_files, "WRITTEN_AT_ONCE", 1 << 20)
    saved = {f"layer {i}": torch.full((1 << 16,), float(i)) for i in range(64)}  # a quarter of a MiB each
    tracemalloc.start()
    save_state(saved, tmp_path).result(60)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4 << 20
    assert len(list(tmp_path.iterdir())) == 16
    found = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    load_state(found, tmp_path)
    assert all(torch.equal(found[name], tensor) for name, tensor in saved.items())


@pytest.mark.attack
def test_nothing_is_unpickled(tmp_path):
    """The files by whose names PyTorch's own format pickles, in a folder that somebody else made."""
    folder, canary = tmp_path / "step", tmp_path / "canary"
    folder.mkdir()
    save_state(state(2.0), folder).result(60)
    for name in (".metadata", "__0_0.distcp", "data.pkl", "model.bin"):
        (folder / name).write_bytes(pickle.dumps(Canary(canary)))
    load_state(state(0.0), folder)
    assert not canary.exists()


@pytest.mark.parametrize("damage", [
    lambda data: b"", lambda data: data[:100], lambda data: b"\xff" * len(data), lambda data: data[:8] + b"{" * 200])
def test_a_broken_shard_is_a_fault_of_one_line(tmp_path, damage):
    save_state(state(2.0), tmp_path).result(60)
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(LearnerFault, match=r"does not fit this run: .+") as error:
        load_state(state(0.0), tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(LearnerFault, match=r"does not fit this run: .+"):
        read_tensors(tmp_path, lambda _: True)


def test_another_models_state_is_a_fault(tmp_path):
    save_state({"model": {"w": torch.zeros(4, 9)}}, tmp_path).result(60)
    with pytest.raises(LearnerFault, match="does not fit this run"):
        load_state(state(0.0), tmp_path)


def tensors(fill):
    return {"model": {"w": torch.full((4, 3), fill)}, "optimizer": {"state": {"w": {"step": torch.tensor(fill)}}}}


def test_the_copy_stays_as_the_state_was():
    live, copy = tensors(2.0), HostCopy()
    staged = copy.stage(live)
    live["model"]["w"].zero_()
    live["optimizer"]["state"]["w"]["step"].zero_()
    assert (staged["model"]["w"] == 2).all()
    assert staged["optimizer"]["state"]["w"]["step"] == 2


def test_the_next_copy_lies_in_the_same_memory():
    copy = HostCopy()
    first = copy.stage(tensors(2.0))["model"]["w"]
    second = copy.stage(tensors(3.0))["model"]["w"]
    assert second.data_ptr() == first.data_ptr()
    assert (second == 3).all()


def test_a_tensor_that_a_later_state_adds_is_copied_too():
    """AdamW has its moments only after the first update."""
    copy = HostCopy()
    copy.stage({"model": {"w": torch.ones(2)}})
    staged = copy.stage({"model": {"w": torch.ones(2)}, "optimizer": {"w": torch.full((2,), 5.0)}})
    assert (staged["optimizer"]["w"] == 5).all()


def test_each_checkpoint_has_its_own_state(tmp_path):
    copy = HostCopy()
    for name, fill in (("one", 1.0), ("two", 2.0)):
        (tmp_path / name).mkdir()
        save_state(tensors(fill), tmp_path / name, copy=copy).result(60)
    for name, fill in (("one", 1.0), ("two", 2.0)):
        found = tensors(0.0)
        load_state(found, tmp_path / name)
        assert (found["model"]["w"] == fill).all(), name
