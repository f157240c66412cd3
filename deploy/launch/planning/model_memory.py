"""Computes the sizes of a config's model, training and checkpoints, from the headers of the model's files, or from the
config alone if the cold start creates the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from learner.credit.registry import estimator
from learner.model.memory import Shape, Training, adapter_parameters, decide_checkpointing, shape_of, training_of
from services.amounts import GIB
from services.config.tree import Config, ModelSection
from services.errors import UserError
from services.files import read_json
from services.weights.headers import folder_parameters
from services.weights.link import BUCKET
from services.weights.registry import Way

STORED = 3
"""Largest number of copies of the weights in Ray's object store: the old version, and two copies of the new one while
it is published (services/weights/actor.py). An evaluation publishes a file and needs one copy less."""
SCRATCH_VOCABULARY = 1024
"""Upper bound of the vocabulary of the tokenizer that the cold start trains."""
TYPICAL_ROW = 0.25
"""Length of a typical row over that of the longest: ALFWorld's full prompts have about 650 of 2,560 tokens."""
SPEED = {"kept": 306e12, "checkpointed": 269e12, "adapters": 227e12}
"""Model FLOPs per second of a 1.5B model on one H100 without compiled layers: with activations kept, with activations
computed twice, and with adapters (docs/gpu-status.md, packs of 12,288 tokens)."""


def model_shape(model: ModelSection) -> Shape:
    """Returns the shape of the model at model.path, or of the model that the cold start creates."""
    if model.path is not None:
        return shape_of(read_json(model.path / "config.json", dict[str, Any]), folder_parameters(model.path))
    embeddings = SCRATCH_VOCABULARY * model.hidden * (1 if model.tie_embeddings else 2)
    attention = 4 * model.hidden**2 + 3 * model.hidden
    norms = 2 * model.hidden
    layer = attention + 3 * model.hidden * model.intermediate + norms
    return Shape(
        parameters=embeddings + model.layers * layer + model.hidden, layers=model.layers, hidden=model.hidden,
        intermediate=model.intermediate, heads=model.heads, queries=model.hidden, keys=model.hidden,
        vocabulary=SCRATCH_VOCABULARY, tied=model.tie_embeddings)


def planned_training(config: Config, shape: Shape, device_bytes: int | None) -> Training:
    """Returns how the learner trains if a rank may take `device_bytes` of a GPU. None stands for host memory."""
    critic = estimator(config.learner.credit.estimator).needs_critic
    path = config.learner.distill.teacher
    training = training_of(config, critic=critic, adapters=adapter_parameters(shape, config.learner.lora),
                           teacher=0 if path is None else folder_parameters(path))
    return decide_checkpointing(training, shape, config.learner.checkpointing, device_bytes)


def pack_tokens(config: Config, rows: int) -> int:
    """Returns the number of tokens in each pack of one rank, in a pass with gradients.

    `rows`: the number of rows in an update. Each is taken to have the length TYPICAL_ROW.
    """
    tokens = rows * TYPICAL_ROW * config.rollout.row_tokens / config.learner.ranks
    return round(tokens / math.ceil(tokens / config.learner.token_budget))


def training_seconds(config: Config, rows: int, *, checkpointing: bool) -> float:
    """Returns the seconds that the learner's passes over a step of `rows` typical rows would take on H100s, without
    communication between ranks. learner/model/utilization.py counts the same FLOPs and passes."""
    learner, rollout, shape = config.learner, config.rollout, model_shape(config.model)
    training = planned_training(config, shape, None)
    answer = TYPICAL_ROW * rollout.max_response_tokens
    row = TYPICAL_ROW * rollout.max_prompt_tokens + answer
    forward = 2 * (shape.matrices * (row + shape.pair_cost * row**2) + shape.vocabulary * shape.hidden * answer)
    updates, adapters = math.ceil(rows / learner.minibatch_rows), bool(training.adapters)
    passes = 1 - 1 / updates + (2 if adapters else 3) + training.reference + 4 * training.critic
    rate = SPEED["adapters" if adapters else "checkpointed" if checkpointing else "kept"]
    return rows * forward * passes / (rate * learner.ranks)


def check_cache(config: Config) -> None:
    """Raises UserError if the KV cache cannot hold one row. Families with sliding windows or recurrent states need
    less than this check asks."""
    rollout, row, shape = config.rollout, config.rollout.row_tokens, model_shape(config.model)
    size = 2 if config.model.dtype == "bfloat16" else 4
    needed = 2 * shape.layers * shape.keys * size * row / rollout.tensor_parallel / GIB
    if rollout.gpu_memory is None and rollout.kv_cache_gb < needed:
        raise UserError(f"rollout.kv_cache_gb={rollout.kv_cache_gb:g} holds {rollout.kv_cache_gb / needed * row:.0f} "
                        f"tokens, and a row of prompt and response may have {row}",
                        f"raise it to {math.ceil(10 * needed) / 10:g} or more, or lower rollout.max_prompt_tokens")


def sampler_bytes(config: Config, shape: Shape) -> int:
    """Returns the bytes of the sampler's weights."""
    return shape.parameters * (2 if config.model.dtype == "bfloat16" else 4)


def stored_bytes(config: Config) -> int:
    """Returns the bytes of the versions that may be in Ray's object store at once."""
    return STORED * sampler_bytes(config, model_shape(config.model))


def check_object_store(config: Config, stores: Sequence[float]) -> None:
    """Raises UserError if the largest of Ray's object stores, in bytes, has no room for them: Ray would write them to
    a disk and read them again."""
    needed, largest = stored_bytes(config), max(stores, default=0.0)
    if needed > largest:
        raise UserError(f"Ray's largest object store has {largest / GIB:.1f} GiB, and the versions of the weights take "
                        f"up to {needed / GIB:.1f} GiB in it", f"give the node of the weights actor more memory, or "
                        f"start its Ray with --object-store-memory={needed}")


def received_bytes(config: Config, shape: Shape, way: Way) -> float:
    """Returns the bytes on each GPU of an engine for a version that arrives during requests (rollout/weights/inbox.py).

    Each GPU keeps its part. By NCCL the version comes in buckets. An engine over several GPUs gathers tensors
    while it swaps versions. It then also holds the largest complete tensors of vLLM's layerwise reload: the embeddings,
    or the matrices of one layer.
    """
    version, parts = sampler_bytes(config, shape), config.rollout.tensor_parallel
    rows = max(shape.vocabulary, 2 * shape.intermediate, 2 * (shape.queries + shape.keys)) if parts > 1 else 0
    return version / parts + rows * shape.hidden * version / shape.parameters + (BUCKET if way == "nccl" else 0)


def checkpoint_bytes(config: Config) -> int:
    """Returns the bytes of one checkpoint: the trained weights and their two moments in float32, and an export."""
    return _state_bytes(config) + sampler_bytes(config, model_shape(config.model))


def _state_bytes(config: Config) -> int:
    shape = model_shape(config.model)
    training = planned_training(config, shape, None)
    return 12 * ((training.adapters or shape.parameters) + (shape.parameters if training.critic else 0))


def kept_bytes(config: Config) -> int:
    """Returns the most bytes that all checkpoints of a run take at once: the newest ones, the best one, and the draft
    of the next. If steps without a checkpoint are evaluated, two exports are added: the best one, and the one that is
    evaluated. If the learner's ranks train the cold start that RL is compared with, two states are added."""
    states = 2 if config.sft.enabled and config.eval.compare_cold_start and config.imitates_on_ranks else 0
    alone = 2 if config.eval.every % config.checkpoint.every and not config.learner.lora.rank else 0
    return ((config.checkpoint.keep + 2) * checkpoint_bytes(config) + states * _state_bytes(config)
            + alone * sampler_bytes(config, model_shape(config.model)))
