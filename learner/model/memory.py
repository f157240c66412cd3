"""Computes how much memory training needs, from the shape of the model. Pure and light: plans of runs use it too.

All sizes are in bytes. Legend: T tokens, V vocabulary, c bytes of a number in the compute format (2 in bfloat16, 4 in
float32). tests/parity/learner/test_memory.py compares the activations with what autograd saves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from services.amounts import GIB
from services.config.sections import LoraSection
from services.config.tree import Config

LOGITS_AT_ONCE = 1 << 26
"""Elements of [T, V] logits held at once (256 MB in float32). Larger logits are recomputed in slices backwards."""
LOGIT_TENSORS = 6
"""Float32 tensors of that size at once: logits, their log-softmax, its exponential, the product, two gradients."""
GATHERED_BYTES = 12 << 30
"""A model stays gathered between packs if its weights and gradients take at most this (learner/model/sharding.py)."""
WRITTEN_AT_ONCE = GIB
"""Bytes of one file of a checkpoint, unless a single tensor is larger. safetensors holds a file twice to write it."""
SCORE = 8
"""Bytes of a capped score that a layer saves: 2 + 4 + 2 in bfloat16, 4 + 4 in float32."""
PLANNED_SHARE = 0.9
"""Share of the device's memory that the plan may use. The rest is for the allocator and for kernels."""
HEAD_ROOM = 0.05
"""Share of a shared GPU that neither process may plan with: fragmentation takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A decoder-only transformer with gated feed-forward layers."""

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    queries: int
    """Query heads times head size."""
    keys: int
    """Key heads times head size."""
    vocabulary: int
    tied: bool
    capped: bool = False
    """Whether attention caps its scores, as in Gemma 2. Then it holds all of them."""

    @property
    def pair_cost(self) -> float:
        """FLOPs of attention per squared token of a sequence, over those of all matrices per token."""
        return self.queries * self.layers / max(1, self.matrices)

    @property
    def matrices(self) -> int:
        """Parameters without embeddings and head."""
        return self.parameters - self.vocabulary * self.hidden * (1 if self.tied else 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The distribution of a model over its ranks. learner/model/sharding.py explains each choice."""

    checkpointing: bool = False
    compiled: bool = False
    """Whether torch compiles each layer."""
    gathered: bool = True
    """Whether the model stays gathered from the first pack of an update to the last."""
    shards: int = 1
    """Number of ranks that the model is sharded over: all ranks, or those of one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The settings that memory depends on."""

    tokens: int
    """Number of tokens of the largest pack."""
    shards: int = 1
    """Number of ranks that a model is sharded over."""
    ranks: int = 1
    half: bool = True
    """Whether training computes in bfloat16."""
    checkpointing: bool = False
    reference: bool = True
    """Whether there is a frozen copy of the first weights for the KL term. Adapters need none: see lora.py."""
    teacher: int = 0
    """Number of parameters of the teacher of distillation; 0 without one."""
    critic: bool = False
    offload: bool = False
    """Whether the optimizer's moments lie in host memory."""
    adapters: int = 0
    """Number of parameters of the adapters; 0 if all weights are trained."""
    grid: bool = False
    """Whether attention lays rows out as a rectangle, as it does without CUDA and in float32. Families that always need
    it are not counted."""
    longest: int = 0
    """Tokens of the longest row, which count if scores are capped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory in use on the device of one rank, in bytes."""

    weights: float
    gradients: float
    moments: float
    """Bytes of the optimizer's state. 0 if it is in host memory."""
    reference: float
    """Bytes of the frozen models: the reference and the teacher."""
    critic: float
    """Bytes of the critic's weights, gradients and moments."""
    gathered: float
    """Weights in the compute format and gradients that are not sharded yet."""
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return (self.weights + self.gradients + self.moments + self.reference + self.critic + self.gathered
                + self.activations + self.logits)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDevice:
    """A GPU that a learner rank shares with a sampler. Sizes are in bytes."""

    occupied: float
    """Planned memory of the sampler and of the processes' CUDA contexts."""
    sends: float
    """The snapshot of the weights that the learner sends, which its own allocator holds."""

    def bound(self, device_bytes: int) -> float:
        """Returns the bytes of the GPU that the learner's allocator may take."""
        return (1 - HEAD_ROOM) * device_bytes - self.occupied

    def room(self, device_bytes: int) -> float:
        """Returns the bytes that `bound` leaves for training."""
        return self.bound(device_bytes) - self.sends


def shape_of(config: Mapping[str, Any], parameters: int) -> Shape:
    """Returns the shape of a model from its Hugging Face config.json. Missing keys count as 0."""
    hidden, heads = config.get("hidden_size", 0), config.get("num_attention_heads", 1)
    size = config.get("head_dim") or hidden // heads
    return Shape(
        parameters=parameters, layers=config.get("num_hidden_layers", 0), hidden=hidden,
        intermediate=config.get("intermediate_size", 0), heads=heads, queries=heads * size,
        keys=(config.get("num_key_value_heads") or heads) * size, vocabulary=config.get("vocab_size", 0),
        tied=bool(config.get("tie_word_embeddings", False)), capped=config.get("attn_logit_softcapping") is not None)


def layer_activations(shape: Shape, *, half: bool, grid: bool = False, longest: int = 0) -> float:
    """Returns the bytes per token that one layer saves for its backward pass.

    Each of two norms: its input in float32, the normalised input, its output. Attention: queries, keys, values and
    outputs, one float32 per head. Feed-forward: gate, its activation, the other branch, their product. A rectangle
    also holds the outputs as they lie in the pack. Capped scores: each under its cap, in float32 after the softmax and,
    in bfloat16, as a factor of the values.
    """
    c = 2 if half else 4
    norms = 2 * (4 + 2 * c) * shape.hidden
    attention = c * (2 * shape.queries + 2 * shape.keys) + 4 * shape.heads
    attention += c * shape.queries if grid or shape.capped else 0
    attention += _capped_scores(shape, longest)
    return norms + attention + 4 * c * shape.intermediate


def _capped_scores(shape: Shape, longest: int) -> int:
    """Returns the bytes per token that a layer saves of its scores, 0 if it caps none and so holds none."""
    return SCORE * shape.heads * longest if shape.capped else 0


def saved_per_token(shape: Shape, *, half: bool, checkpointing: bool, grid: bool = False, longest: int = 0) -> float:
    """Returns the bytes per token that a forward pass saves for the backward pass, without logits.

    A checkpointed layer saves only its input. The last norm saves its input in float32 and normalised.
    """
    c = 2 if half else 4
    layer = c * shape.hidden if checkpointing else layer_activations(shape, half=half, grid=grid, longest=longest)
    return shape.layers * layer + (4 + c) * shape.hidden


def gradients_in_flight(shape: Shape, *, half: bool) -> float:
    """Returns the bytes per token that a layer's backward pass needs at its peak, beyond what the layer saved.

    The peak is at the product of the two feed-forward branches. By then the product itself is freed, and its gradient
    and those of both branches exist, so two tensors of that size are added to the saved ones. The gradients of the
    hidden state before and after the feed-forward layer exist too.
    """
    c = 2 if half else 4
    return c * (2 * shape.intermediate + 2 * shape.hidden)


def memory(shape: Shape, training: Training) -> DeviceMemory:
    """Returns the memory that one rank needs on its device at the peak, which is in the backward pass.

    It is that of any pack but the first of an update, so all gradients exist. Checkpointed layers are recomputed one
    after another, so the saved tensors of one layer are added to the inputs of all layers.
    """
    c, gathered = 2 if training.half else 4, stays_gathered(shape)
    trained = training.adapters or shape.parameters
    held = 4 * shape.parameters if not training.adapters else c * shape.parameters + 4 * training.adapters
    root = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    in_turn = root + 2 * (shape.parameters - root) / max(1, shape.layers)  # the root stays gathered in a pass
    at_once = shape.parameters if gathered else in_turn
    between = gathered and training.ranks > 1  # gradients are reduced at the last pack
    unsharded = min(trained, shape.parameters if between else in_turn)
    of_critic = (c + 4) * shape.parameters if between and training.critic else 0
    half, grid, longest = training.half, training.grid, training.longest
    again = layer_activations(shape, half=half, grid=grid, longest=longest) if training.checkpointing else 0
    # Capped scores have two gradients in float32, as many bytes as a layer saves of them.
    working = again + max(gradients_in_flight(shape, half=half), _capped_scores(shape, longest))
    saved = saved_per_token(shape, half=half, checkpointing=training.checkpointing, grid=grid, longest=longest)
    moments = 0 if training.offload else 8
    return DeviceMemory(
        weights=held / training.shards,
        gradients=4 * trained / training.shards,
        moments=moments * trained / training.shards,
        reference=c * (training.teacher + (shape.parameters if training.reference and not training.adapters else 0)
                       ) / training.shards,
        critic=(8 + moments) * shape.parameters / training.shards if training.critic else 0,
        gathered=c * at_once + 4 * unsharded + of_critic,
        activations=training.tokens * (saved + working),
        logits=LOGIT_TENSORS * 4 * min(LOGITS_AT_ONCE, training.tokens * shape.vocabulary),
    )


def host_moments(shape: Shape, training: Training) -> float:
    """Returns the bytes of host memory that one rank pins for the moments of its optimizers."""
    trained = (training.adapters or shape.parameters) + (shape.parameters if training.critic else 0)
    return 8 * trained / training.shards if training.offload else 0


def offloaded_bytes(shape: Shape, training: Training) -> float:
    """Returns the bytes of one rank's states, which are in host memory while a sampler has the GPU (host_memory.py).

    These are weights, reference and critic, and moments that are not in host memory already. There are no gradients
    between learner steps.
    """
    needs = memory(shape, training)
    critic_gradients = 4 * shape.parameters / training.shards if training.critic else 0
    return needs.weights + needs.moments + needs.reference + needs.critic - critic_gradients


def checkpoint_copy(shape: Shape, training: Training) -> float:
    """Returns the bytes of host memory that one rank needs while a checkpoint is written: trained weights, moments, and
    two copies of the file that is being written."""
    trained = (training.adapters or shape.parameters) + (shape.parameters if training.critic else 0)
    copied, largest = 12 * trained / training.shards, 4 * shape.vocabulary * shape.hidden / training.shards
    return copied + 2 * min(copied, max(WRITTEN_AT_ONCE, largest))


def stays_gathered(shape: Shape) -> bool:
    """Whether the model stays gathered between packs. Weights and gradients count as float32 in every format."""
    return 8 * shape.parameters <= GATHERED_BYTES


def training_of(config: Config, *, critic: bool, adapters: int = 0, teacher: int = 0) -> Training:
    """Returns the settings of a run, sharded over all of its ranks. Checkpointing `auto` counts as off.

    `adapters`, `teacher`: numbers of parameters.
    """
    learner, half = config.learner, config.model.dtype == "bfloat16"
    row = config.rollout.row_tokens
    return Training(
        tokens=max(learner.token_budget, row), longest=row,
        shards=learner.ranks, ranks=learner.ranks, half=half, checkpointing=learner.checkpointing is True,
        reference=learner.loss.kl > 0, critic=critic, offload=learner.offload, adapters=adapters, teacher=teacher,
        grid=not learner.gpus or not half)


def adapter_parameters(shape: Shape, lora: LoraSection) -> int:
    """Returns the number of parameters of the adapters; 0 if there are none.

    Layers with other names count as feed-forward layers. As 0 the sum could be 0, which means that all weights are
    trained.
    """
    h, i, q, k = shape.hidden, shape.intermediate, shape.queries, shape.keys
    sides = {"q_proj": h + q, "k_proj": h + k, "v_proj": h + k, "o_proj": q + h, "qkv_proj": h + q + 2 * k,
             "gate_up_proj": h + 2 * i}
    return lora.rank * shape.layers * sum(sides.get(name, h + i) for name in lora.targets)


def decide_checkpointing(training: Training, shape: Shape, checkpointing: bool | Literal["auto"],
                         device_bytes: int | None) -> Training:
    """Returns the settings with `learner.checkpointing` decided: `auto` uses it if training does not fit without it.

    `device_bytes` None: host memory, where nothing is recomputed unless the config asks for it.
    """
    if checkpointing != "auto" or fits(training, shape, device_bytes):
        return training
    return replace(training, checkpointing=True)


def fits(training: Training, shape: Shape, device_bytes: int | None) -> bool:
    """Whether training takes at most PLANNED_SHARE of the device's memory. None: host memory, which is not planned."""
    return device_bytes is None or memory(shape, training).total <= PLANNED_SHARE * device_bytes


def layout_of(training: Training, shape: Shape, *, checkpointing: bool | Literal["auto"], per_node: int,
              device_bytes: int | None) -> Layout:
    """Returns the layout of a model: sharded over the ranks of one machine if it fits there, else over all ranks."""
    options = (replace(training, shards=shards) for shards in (per_node, training.ranks))
    within, across = (decide_checkpointing(option, shape, checkpointing, device_bytes) for option in options)
    chosen = within if per_node > 1 and fits(within, shape, device_bytes) else across
    return Layout(checkpointing=chosen.checkpointing, gathered=stays_gathered(shape), shards=chosen.shards)
