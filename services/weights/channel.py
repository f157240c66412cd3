"""The channel by which a policy version gets from the learner into every sampler: one interface, two ways.

    learner, rank 0                      weights actor (actor.py)                    rollout worker
    TrainingLoop                         versions in host memory, TransferRegistry   RolloutWorker
      ▸ WeightSender.snapshot, send                                                    ▸ WeightReceiver.run, receive
          learner/weights/sender.py                                                        rollout/weights/receiver.py
            publish ───────────────────────▸ one packed buffer ◂──── fetch ───────────── HostReceiver
            begin, progress ───────────────▸ registry ◂───────────── call, report ────── GpuReceiver
              ▸ RankSender of each rank ═══ NCCL or CUDA IPC (link.py, shared_memory.py) ══▸ Inbox of vLLM's process
                  learner/weights/rank_sender.py                                           rollout/weights/inbox.py

Host memory: the ranks write their rows into one buffer, BLAKE3 names it, the weights actor owns it. A worker fetches it
when it follows the pointer in the store; the workers of a machine check it once and share one file of it.

GPU to GPU: each rank copies its rows into a stream of its own and sums them; the sums name the version. The workers
that call the registry then take part in a *round*: a thread in vLLM's process receives the streams while requests
continue, and sums its part of the memory that it will load from. The streams stay until the next snapshot. Host memory
gets a copy from them while training continues, if it is needed: for an evaluation, for a checkpoint, for a worker that
started late and missed the version, and at once if the round failed.

Order
    1. snapshot ends before the weights change. send and copies end before the next snapshot.
    2. A version becomes current (`live`) when every worker that takes part holds it, or when host memory has it.
    3. A round ends before the next begins: each rank, receiver and worker is in one round at most.
    4. All members broadcast in one order: sender by sender, bucket by bucket.
    5. Weights are replaced only in a pause of the engine's requests, by vLLM's layerwise reload.

Guaranteed: a worker loads a version only if its bytes have the version's digest. The current version can be received
from host memory, there at the latest when the learner waits for episodes or an evaluation, or from the exported
checkpoint that the pointer names.

    failure                                  noticed by                       then
    a receiver dies or hangs                 rank 0: no call for SILENT_S     the round ends for all, host memory
    it cannot connect, its digest differs    its report                       the same
    nobody ends the round                    weights.seconds, at all members  the same
    GIVE_UP rounds in a row failed           WeightSender                     host memory from then on
    a rank of the learner dies               its rank group's collectives     all ranks restart from the checkpoint
    the weights actor dies                   RayActorError, or a worker that  the learner publishes again
                                             finds no version
    nobody has a version's weights           receive returns None             the worker waits for the learner

vLLM's own transfer engines (0.32: nccl, ipc, sharded_rdt, nccl_m2n) are not used. They lack: a deadline and an end when
a member dies (the broadcast waits for ever), members that come and go (the group is made once), a digest, several
senders without a gather (nccl), handles that need no pickle (ipc), any way on CPUs, and requests that continue
meanwhile: they receive into the model while it pauses. What they share with us is used: the layerwise reload.
"""

from __future__ import annotations

from typing import Protocol

from services.records import Version
from services.weights.canary import Canary


class WeightReceiver(Protocol):
    """A worker's end."""

    async def run(self) -> None:
        """Takes part in rounds until it is cancelled. Raises EngineFault."""
        ...

    async def receive(self, version: Version, export: str, canary: Canary | None = None) -> float | None:
        """Loads a version into the engine, which has it afterwards. `export`: a folder with its weights, "" if unknown.
        `canary`: what the learner computes with it.

        Returns the seconds of the update without the fetch, or None if nobody has the version now. Raises EngineFault
        if the engine cannot be used any more, DeadlineExceeded after rollout.update_seconds, and WrongWeights if the
        engine computes something else by each way that there is.
        """
        ...
