"""The learner's state as safetensors: each rank writes its part, and any number of ranks can read it.

The state is copied to host memory, from which a thread writes it while training continues. That memory is kept from
checkpoint to checkpoint, and page-locked for a GPU. PyTorch's own stager takes new memory each time and copies a
sharded tensor twice; on one H100 that stopped the training of a 1.5B model for 36 s at each checkpoint.

Nothing here is unpickled. PyTorch's own format of distributed checkpoints pickles its metadata, so a person who can
write into a shared run's folder could run code as the user who resumes it. So only tensors are written; what else an
optimizer has (its rates, its betas) comes from the config.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future as TorchFuture

from learner.checkpoints.file_facts import HashedFile
from learner.model.host_memory import pinned
from learner.model.memory import WRITTEN_AT_ONCE
from learner.model.sharding import local_part, with_part
from services.errors import LearnerFault, first_line
from services.outages import retry_files


class _HashingFileSystem(FileSystem):
    """Hashes each file while it is written."""

    def __init__(self) -> None:
        super().__init__()
        self.digests: dict[str, str] = {}
        """File name -> digest."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase]:
        """Opens a file for writing."""
        assert mode == "wb", "a state is only written"
        with HashedFile(Path(path)) as file:
            yield cast("io.IOBase", file)
        self.digests[Path(path).name] = file.digest


class PatientWriter(HuggingFaceStorageWriter):
    """Writes this rank's part. Retries for up to `wait_s` seconds while the disk is full or unavailable.

    Files have at most WRITTEN_AT_ONCE bytes, or one tensor, because a file is in memory twice while it is written.
    """

    def __init__(self, folder: Path, wait_s: float) -> None:
        super().__init__(str(folder), save_distributed=True)
        self._wait_s = wait_s
        self.fs = self._files = _HashingFileSystem()
        self.digests: dict[str, str] = {}
        """File name -> digest, of the files of all ranks. Filled on rank 0 once all have written."""

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Assigns a file to each tensor of each rank."""
        return [replace(plan, storage_data={**plan.storage_data, "fqn_to_index_mapping": _files(plan)})
                for plan in super().prepare_global_plan(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> TorchFuture[list[WriteResult]]:
        """Returns one result for each tensor, with the digest of its file. Raises DeadlineExceeded after `wait_s`."""
        written = retry_files(lambda: HuggingFaceStorageWriter.write_data(self, plan, planner),
                              seconds=self._wait_s, what=f"{self.path} could not be written").wait()
        results: TorchFuture[list[WriteResult]] = TorchFuture()
        results.set_result([replace(one, storage_data=(file, self._files.digests[file]))
                            for one in written for file in [one.storage_data.relative_path]])
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:  # noqa: ARG002
        """Collects the digests of all ranks, on rank 0."""
        self.digests = dict(one.storage_data for rank in results for one in rank)


def _files(plan: SavePlan) -> dict[str, int]:
    """Returns tensor name -> number of its file, from 1, for the tensors of one rank."""
    files: dict[str, int] = {}
    number, filled = 1, 0
    for item in plan.items:
        data = item.tensor_data
        assert data is not None, "only tensors are written"
        size = data.chunk.sizes.numel() * data.properties.dtype.itemsize
        if filled and filled + size > WRITTEN_AT_ONCE:
            number, filled = number + 1, 0
        filled += size
        files[item.index.fqn] = number
    return files


def save_state(state: dict[str, Any], folder: Path, *, copy: HostCopy | None = None, group: ProcessGroup | None = None,
               wait_s: float = 0.0) -> Future[dict[str, str]]:
    """Copies the tensors of a nested state to host memory and begins to write them into a folder that all ranks see.

    A collective. The future is done when all ranks have written. On rank 0 it has the digest of each file, by name.
    `copy`: the host memory of the last save, to be used again; that save must have ended. `group`: a gloo group only
    for the writing threads, because the collectives of two threads must not use the same group. `wait_s`: longest wait
    for a disk that is full or unavailable.
    """
    writer, digests = PatientWriter(folder, wait_s), Future[dict[str, str]]()

    def finished(saving: Future[object]) -> None:
        if error := saving.exception():
            digests.set_exception(error)
        else:
            digests.set_result(writer.digests)

    saving = cast("Future[object]", async_save(
        _tensors(state), storage_writer=writer, async_stager=copy or HostCopy(), process_group=group))
    saving.add_done_callback(finished)
    return digests


def load_state(state: dict[str, Any], folder: Path) -> None:
    """Overwrites the tensors of `state` with those that save_state wrote on any number of ranks. A collective.

    Raises LearnerFault if the folder lacks a tensor, has it in another shape, or cannot be read.
    """
    with _learner_faults(folder):
        load(_tensors(state), storage_reader=HuggingFaceStorageReader(str(folder)))


@contextmanager
def _learner_faults(folder: Path) -> Generator[None]:
    """Raises LearnerFault that names the folder in place of an error of its block."""
    try:
        yield
    except (CheckpointException, Exception) as error:  # the first is a BaseException
        raise LearnerFault(f"the checkpoint in {folder} does not fit this run: {first_line(error)}") from error


def read_tensors(folder: Path, chosen: Callable[[str], bool]) -> dict[str, Tensor]:
    """Returns name -> tensor for the chosen names of a state that save_state wrote on any number of ranks.

    Names are those of the nested state, joined by dots. For a process without a process group. Raises LearnerFault as
    load_state does.
    """
    with _learner_faults(folder):
        facts = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    state = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in facts.items()
             if isinstance(entry, TensorStorageMetadata) and chosen(name)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # intended here
        load_state(state, folder)
    return state


def _tensors(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the same tree with tensors only."""
    kept = {key: _tensors(value) if isinstance(value, dict) else value for key, value in state.items()}
    return {key: value for key, value in kept.items() if isinstance(value, dict | Tensor)}


class HostCopy(BlockingAsyncStager):
    """Copies nested states of one shape to host memory. Before the next copy, the last one must have been written."""

    def __init__(self) -> None:
        super().__init__()
        self._host: dict[tuple[str, ...], Tensor] = {}
        """Host memory of each tensor, by its path in the tree."""

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Returns the same tree on the CPU. Returns once all copies have arrived."""
        staged = self._tree(state_dict, ())
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return staged

    def _tree(self, tree: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        return {key: self._tree(value, (*path, key)) if isinstance(value, dict) else self._copied(value, (*path, key))
                for key, value in tree.items()}

    def _copied(self, tensor: Tensor, path: tuple[str, ...]) -> Tensor:
        part = local_part(tensor)
        if path not in self._host:
            self._host[path] = pinned(part, part.device)
        return with_part(tensor, self._host[path].copy_(part, non_blocking=True))
