"""The header of a safetensors file is compared with the file."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from services.files import Damaged
from services.weights.headers import tensor_shapes


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
