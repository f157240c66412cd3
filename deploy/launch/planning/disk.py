"""The disk that a run's checkpoints take, and whether the run's folder has it."""

from __future__ import annotations

import shutil

from deploy.launch.planning.model_memory import model_shape, planned_training, sampler_bytes
from services.config.tree import Config
from services.units import in_gib


def checkpoint_bytes(config: Config) -> int:
    """Returns the bytes of one checkpoint: the trained weights and their two moments in float32, and an export."""
    return _state_bytes(config) + sampler_bytes(config, model_shape(config.model))


def _state_bytes(config: Config) -> int:
    shape = model_shape(config.model)
    training = planned_training(config, shape, None)
    return 12 * ((training.adapters or shape.parameters) + (shape.parameters if training.critic else 0))


def kept_bytes(config: Config) -> int:
    """Returns the most bytes that all checkpoints of a run take at once: the newest ones, the best one, and the draft
    of the next. Evaluated steps without a checkpoint add two exports: the best one, and the one that is evaluated. More
    cold start on the learner's ranks adds two states."""
    states = 2 if config.sft.enabled and config.eval.compare_cold_start and config.imitates_on_ranks else 0
    alone = 2 if config.eval.every % config.checkpoint.every and not config.learner.lora.rank else 0
    return ((config.checkpoint.keep + 2) * checkpoint_bytes(config) + states * _state_bytes(config)
            + alone * sampler_bytes(config, model_shape(config.model)))


def short_of_disk(config: Config) -> list[str]:
    """Returns a line if the disk of runs_dir has no room for the checkpoints that are still to come. A runs_dir whose
    parent is not here either is another machine's."""
    place = next((folder for folder in (config.runs_dir, config.runs_dir.absolute().parent) if folder.is_dir()), None)
    if place is None:
        return []
    kept = sum(file.stat().st_size for file in (config.run_dir / "checkpoints").rglob("*") if file.is_file())
    needed, disk = kept_bytes(config), shutil.disk_usage(place)
    if needed - kept <= disk.free or not disk.total:  # one of the kernel, such as /proc, is no disk
        return []
    return [f"checkpoints may take {in_gib(needed)}, and {config.runs_dir} has {in_gib(disk.free)} free: choose "
            f"another runs_dir, or lower checkpoint.keep={config.checkpoint.keep}"]
