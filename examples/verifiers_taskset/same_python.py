"""A harness of verifiers 0.4: its chat loop, started by the Python that plays.

verifiers' own harness has `uv` fetch the loop's packages from the network, whichever are newest. They are those of
verifiers, so this Python has them.
"""

import sys

from verifiers.v1.harnesses.null import NullHarness


class SamePython(NullHarness):
    """The harness of the id `same-python`."""

    async def setup(self, runtime):
        """Prepares the loop in `runtime`, which is a folder of this machine."""
        async def prepare(script, *_, **__):
            path = str(runtime.workdir / "chat_loop.py")
            await runtime.write(path, script.encode())
            return [sys.executable, path]

        runtime.prepare_uv_script = prepare
        await super().setup(runtime)


__all__ = ["SamePython"]
