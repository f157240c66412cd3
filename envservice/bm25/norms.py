"""The influence of a document's length on its scores.

Lucene keeps each length in one byte: exactly below 40, above that with four significant bits (SmallFloat.intToByte4).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

K1 = 0.9
B = 0.4
_EXACT = 24
"""Number of codes that stand for themselves. The others count from here."""


def _length(code: int) -> int:
    bits, exponent = (code - _EXACT) & 7, ((code - _EXACT) >> 3) - 1
    if code < _EXACT:
        return code
    return _EXACT + (bits if exponent < 0 else (bits | 8) << exponent)


LENGTHS = np.array([_length(code) for code in range(256)], dtype=np.int64)
"""Returns the number of terms that each code stands for, ascending: (256,)."""


def encode(lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Encodes numbers of terms (n,), rounded down."""
    return (np.searchsorted(LENGTHS, lengths, side="right") - 1).astype(np.uint8)


def inverse_norms(average: float, k1: float = K1, b: float = B) -> NDArray[np.float32]:
    """Returns 1 / (k1 (1 - b + b length / average)) of each code: (256,).

    Every operation is in single precision, as in Lucene.
    """
    one, k1_, b_ = np.float32(1), np.float32(k1), np.float32(b)
    return one / (k1_ * ((one - b_) + b_ * LENGTHS.astype(np.float32) / np.float32(average)))
