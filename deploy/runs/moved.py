"""The present place of a path that was in a folder of runs which may have been moved as a whole."""

from __future__ import annotations

from pathlib import Path


def followed(path: Path, before: Path, now: Path) -> Path:
    """Returns where `path` is if the folder of runs `before` is at `now`. A path that is there, or was outside of
    `before`, stays as it is.

    `before` may be relative, as a config may have it, also beside an absolute path: /old/runs/mine is in `runs`.
    """
    if path.exists():
        return path
    parts, folder = path.parts, before.parts
    starts = [0] if before.is_absolute() or not path.is_absolute() else range(len(parts) - len(folder), 0, -1)
    for start in starts:
        if folder and parts[start:start + len(folder)] == folder:
            return now.joinpath(*parts[start + len(folder):])
    return path
