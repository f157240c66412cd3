"""Keeps the output of the engine's process to find its last error. vLLM itself says "see stack trace (above)"."""

from __future__ import annotations

import os
import re
import tempfile

TAIL_BYTES = 64 * 1024
_ERROR = re.compile(
    r"(?:^|[\s\]])((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b(?:: .*)?$|Value error, .*?(?= \[type=))")
"""An exception, or pydantic's line about one in a check of vLLM's arguments, which follows "1 validation error for"."""
_EMPTY = ("EngineDeadError", "Engine core initialization failed", "EngineCore encountered an issue",
          "validation error for", "failed to be inspected")


class EngineOutput:
    """A file without a name that the engine's process has as its stdout and stderr."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="gagpo-engine-")  # noqa: SIM115 - it lives as long as the engine

    @property
    def descriptor(self) -> int:
        """File descriptor of the file, for the stdout and stderr of a child process."""
        return self._file.fileno()

    def text(self) -> str:
        """Returns the end of the output so far."""
        size = os.fstat(self._file.fileno()).st_size
        return os.pread(self._file.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")

    def last_error(self) -> str | None:
        """Returns the last printed exception that has a useful message, without the logger's prefix."""
        found = (_ERROR.search(line.rstrip()) for line in reversed(self.text().splitlines()))
        return next((match[1] for match in found if match and not any(empty in match[0] for empty in _EMPTY)), None)
