"""The header of a safetensors file is compared with the file."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from services.files import Damaged
from services.weights.headers import folder_parameters, tensor_shapes, weight_files


def test_shapes_are_those_that_were_saved(tmp_path: Path):
    save_file({"a": torch.zeros(2, 3), "b": torch.zeros((), dtype=torch.bfloat16)}, tmp_path / "m", metadata={"x": "y"})
    assert tensor_shapes(tmp_path / "m") == {"a": (2, 3), "b": ()}


def forged(**tensor: object) -> bytes:
    text = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **tensor}}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(4)


@pytest.mark.parametrize("data", [
    b"", b"\xff" * 100, (1 << 62).to_bytes(8, "little") + b"{}", b"\x02" + bytes(7) + b"[]", forged()[:-1],
    forged() + b"x", forged(shape=[1 << 60]), forged(shape=[-1]), forged(data_offsets=[0, 1 << 60]),
    forged(data_offsets=[]), forged(shape="x"), (9000).to_bytes(8, "little") + b"[" * 9000], ids=range(12))
def test_a_file_that_lies_is_one_line_and_takes_no_memory(tmp_path: Path, data: bytes):
    (tmp_path / "m").write_bytes(data)
    with pytest.raises(Damaged, match=r"is not a complete safetensors file \(.+\); copy the model again"):
        tensor_shapes(tmp_path / "m")


@pytest.mark.parametrize("index", [True, False])
def test_weights_that_mistral_publishes_twice_count_once(index: bool, tmp_path: Path):
    """Its repositories hold model-*.safetensors, and the same weights in Mistral's own format beside them."""
    parts = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    for part, name in enumerate(parts):
        save_file({f"layers.{part}.weight": torch.zeros(2, 3)}, tmp_path / name)
    save_file({"output.weight": torch.zeros(4, 3)}, tmp_path / "consolidated.safetensors")
    if index:
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {
            f"layers.{part}.weight": name for part, name in enumerate(parts)}}))
    assert weight_files(tmp_path) == [tmp_path / name for name in parts]
    assert folder_parameters(tmp_path) == 12
