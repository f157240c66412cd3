"""Packed weights lose nothing and have an exact digest. The header of a safetensors file is compared with the file."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from services.files import Damaged
from services.weights import pack
from services.weights.headers import folder_parameters, tensor_shapes, weight_files


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    return {
        "b.bias": torch.arange(3, dtype=torch.float32),
        "a.weight": torch.arange(10, dtype=torch.bfloat16).reshape(5, 2) / 3,
        "c.scalar": torch.tensor(7, dtype=torch.int64),
        "d.mask": torch.tensor([[True, False], [True, True]]),
        "e.scales": torch.tensor([-128, 127], dtype=torch.int8),
        "f.places": torch.tensor([-3, 30_000], dtype=torch.int16),
        "d.empty": torch.zeros(0, 4),
    }


def packed(tensors):
    result = pack.pack_tensors(tensors.items())
    return result.manifest, result.buffer


def unpacked(tensors):
    return pack.unpack(*packed(tensors))


def digest_of(tensors):
    return pack.pack_tensors(tensors.items()).digest


def test_round_trip_keeps_every_bit(tensors):
    """Unpacked tensors equal the packed ones, including bfloat16, scalars and empty tensors."""
    out = unpacked(tensors)
    assert out.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert out[name].dtype == tensor.dtype
        assert torch.equal(out[name], tensor)


def test_numpy_and_bytes_are_welcome(tensors):
    """A numpy array packs to the same bytes as its torch twin, and a received `bytes` unpacks as the array does."""
    manifest, buffer = packed(tensors)
    twin = {n: t if t.dtype == torch.bfloat16 else t.numpy() for n, t in tensors.items()}
    assert digest_of(twin) == pack.digest(manifest, buffer) == digest_of(tensors)
    assert torch.equal(pack.unpack(manifest, buffer.tobytes())["b.bias"], tensors["b.bias"])


def test_entries_are_sorted_aligned_and_do_not_overlap(tensors):
    """The layout that views without a copy rely on."""
    manifest, buffer = packed(tensors)
    assert [e.name for e in manifest] == sorted(tensors)
    assert all(e.offset % pack.ALIGNMENT == 0 for e in manifest)
    ends = [e.offset + e.nbytes for e in manifest]
    assert all(end <= nxt.offset for end, nxt in zip(ends, manifest[1:], strict=False))
    assert ends[-1] <= len(buffer)


def test_unpack_does_not_copy(tensors):
    """The tensors are views: a received buffer is held once."""
    manifest, buffer = packed(tensors)
    view = pack.unpack(manifest, buffer)["b.bias"]
    offset = next(e.offset for e in manifest if e.name == "b.bias")
    buffer[offset : offset + 4] = np.frombuffer(np.float32(9).tobytes(), dtype=np.uint8)
    assert view[0] == 9


def test_transposed_tensor_is_packed_in_its_own_order():
    """Strides do not leak into the bytes."""
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3).T
    assert torch.equal(unpacked({"t": tensor})["t"], tensor)


@pytest.mark.parametrize("change", ["value", "name", "shape", "dtype"])
def test_the_digest_changes_with_any_part_of_the_weights(change, tensors):
    """One bit of a value, a name, a shape, a dtype: each names other weights."""
    before = digest_of(tensors)
    bias = tensors.pop("b.bias")
    if change == "value":
        tensors["b.bias"] = bias + torch.tensor([0.0, 0.0, 2e-7])
    elif change == "name":
        tensors["b.gain"] = bias
    elif change == "shape":
        tensors["b.bias"] = bias.reshape(3, 1)
    else:
        tensors["b.bias"] = bias.view(torch.int32)
    assert digest_of(tensors) != before


def test_digest_ignores_order(tensors):
    """A dict filled in another order holds the same weights."""
    assert digest_of(dict(reversed(tensors.items()))) == digest_of(tensors)


def test_short_buffer_is_refused(tensors):
    """A truncated transfer is an error, never a shorter tensor."""
    manifest, buffer = packed(tensors)
    last = max(e.offset + e.nbytes for e in manifest)
    with pytest.raises(ValueError, match="the buffer has"):
        pack.unpack(manifest, buffer[: last - 1])


def test_unknown_dtype_is_refused():
    """A dtype that cannot travel is named."""
    with pytest.raises(ValueError, match=r"z: cannot pack complex64"):
        pack.pack_tensors([("z", torch.zeros(1, dtype=torch.complex64))])


def test_several_cores_give_the_digest_of_one_and_every_byte_counts(monkeypatch: pytest.MonkeyPatch):
    tensors = {"a": np.arange(1_000_000, dtype=np.float32), "b": np.ones((3, 5), dtype=np.float32)}
    whole = pack.pack_tensors(tensors.items())
    monkeypatch.setattr(pack, "SIDE_BY_SIDE", 1000)
    assert pack.digest(list(reversed(whole.manifest)), whole.buffer) == whole.digest
    seen = {whole.digest}
    for entry in whole.manifest:
        for at in (0, entry.nbytes // 2, entry.nbytes - 1):
            changed = whole.buffer.copy()
            changed[entry.offset + at] ^= 1
            seen.add(pack.digest(whole.manifest, changed))
    assert len(seen) == 7


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
