"""The checksum that a device computes: the same for shards and for packed bytes, another for every change."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rollout.engine.weights_file import weights_file
from services.weights import checksum
from services.weights.checksum import combined, digest_like, element_sum
from services.weights.pack import pack_tensors

TENSORS = {"a": torch.randn(37, 5, generator=torch.Generator().manual_seed(0)), "b": torch.arange(7, dtype=torch.int64),
           "c": torch.randn(11, 3, generator=torch.Generator().manual_seed(1)).bfloat16(), "d": torch.tensor(3.5)}


def whole(tensors: dict) -> str:
    packed = pack_tensors(tensors.items())
    return digest_like(checksum.MARK, packed.manifest, packed.buffer)


@pytest.mark.parametrize("chunk", [8, 1 << 22])
@pytest.mark.parametrize("name", ["a", "c"])
def test_the_sums_of_shards_add_up_to_the_sum_of_the_tensor(name, chunk, monkeypatch):
    rows = TENSORS[name]
    expected = int(element_sum(rows, 0)) % 2**64
    monkeypatch.setattr(checksum, "CHUNK", chunk)
    parts = [int(element_sum(part, first * rows.shape[1])) for first, part in zip((0, 4, 4, 9), rows.split(
        [4, 0, 5, len(rows) - 9]), strict=True)]
    assert sum(parts) % 2**64 == expected


@pytest.mark.parametrize("name", TENSORS)
def test_one_changed_bit_changes_the_digest(name):
    packed = pack_tensors(TENSORS.items())
    entry = next(entry for entry in packed.manifest if entry.name == name)
    known = whole(TENSORS)
    for byte in (0, entry.nbytes - 1):
        changed = packed.buffer.copy()
        changed[entry.offset + byte] ^= 64
        assert digest_like(known, packed.manifest, changed) != known


def test_rows_that_change_places_and_other_names_and_shapes_change_the_digest():
    others = [TENSORS | {"a": TENSORS["a"].flip(0)}, TENSORS | {"a": TENSORS["a"].reshape(5, 37)},
              {("e" if name == "a" else name): tensor for name, tensor in TENSORS.items()}]
    assert len({whole(TENSORS), *map(whole, others)}) == 4


def test_the_sum_is_the_formula():
    """Two elements, by hand in Python's integers: factors of splitmix64, all modulo 2^64."""
    def factor(i: int) -> int:
        mixed = i * 0x9E3779B97F4A7C15 % 2**64
        signed = mixed - 2**64 if mixed >= 2**63 else mixed
        return ((mixed ^ (signed >> 32)) * 0xBF58476D1CE4E5B9 | 1) % 2**64

    assert int(element_sum(torch.tensor([5, -3]), 10)) % 2**64 == (5 * factor(10) - 3 * factor(11)) % 2**64


def test_the_machines_file_is_checked_by_the_function_of_its_digest(tmp_path: Path):
    packed = pack_tensors(TENSORS.items())
    known = whole(TENSORS)
    assert known.startswith(checksum.MARK)
    assert digest_like(packed.digest, packed.manifest, packed.buffer) == packed.digest
    with weights_file(packed.manifest, packed.buffer, known, folder=tmp_path) as path:
        assert path.read_bytes() == packed.buffer.tobytes()
    with pytest.raises(ValueError, match="expected sums-"), \
         weights_file(packed.manifest, np.roll(packed.buffer, 1), known, folder=tmp_path):
        pass
    assert combined([], []).startswith(checksum.MARK)
