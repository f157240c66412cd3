"""Models, checkpoints and exports pass through folders, so every node with an actor must see them. Light.

A folder that a node lacks may be a wrong config, or one node that has not mounted its storage, while others work. The
actor cannot tell, so it fails, and the supervisor ends the run only if no node can start it.
"""

from __future__ import annotations

import socket
from pathlib import Path

from services.errors import Fault


def check_seen(*folders: Path,
               fix: str = "set runs_dir, and model.path if it is set, to storage that every node sees") -> None:
    """Raises Fault that names the first folder that does not exist on this node."""
    for folder in folders:
        if not folder.is_dir():
            raise Fault(f"{folder} is not there on {socket.gethostname()}; {fix}")
