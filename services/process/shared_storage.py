"""Models, checkpoints and exports pass through folders, so every node with an actor must see them. Light."""

from __future__ import annotations

import socket
from pathlib import Path

from services.errors import UserError


def check_seen(*folders: Path,
               fix: str = "set runs_dir, and model.path if it is set, to storage that every node sees") -> None:
    """Raises UserError that names the first folder that does not exist on this node."""
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not there on {socket.gethostname()}", fix)
