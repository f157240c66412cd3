"""Whether an event loop runs already: a notebook calls all code inside one."""

import asyncio


def in_loop() -> bool:
    """Returns whether an event loop runs in this thread, so that no other one can run here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
