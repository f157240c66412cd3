"""The section `sft`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from services.config.env import Section


class SftSection(Section):
    """The cold start: demonstrations by a scripted player, then next-token training on them."""

    enabled: bool = True
    """Whether a cold start runs before RL. If not, model.path must name a model."""
    file: Path | None = None
    """JSON lines of trajectories to imitate (docs/tasks/trajectories.md). None: a scripted player demonstrates."""
    minutes: float = Field(default=4.0, gt=0, le=100_000)
    """Minutes of optimisation. Making the demonstrations and the tokenizer takes extra time."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the rows, in place of `minutes`. None: `minutes` counts."""
    demos_per_game: int = Field(default=3, ge=1)
    """Number of demonstrations of each training game."""
    noise: float = Field(default=0.15, ge=0, lt=1)
    """Share of demonstrated turns that are noise: random, or a mistake that agents make. They are executed but not
    trained on."""
    judgements: float = Field(default=0.0, ge=0, le=1)
    """Share of demonstrated turns about which a judgement is shown too (learner.judge): the player's action is good,
    noise in its place is bad, by a coin. Not with sft.file, whose steps may have judgements of their own."""
    jump: float = Field(default=0.2, ge=0, le=1)
    """ALFWorld: probability that the scripted player searches a random place next."""
    batch_rows: int = Field(default=16, ge=1)
    """Rows of one update."""
    lr: float = Field(default=3e-3, gt=0)
    """Learning rate of AdamW."""
    prompt_loss: float = Field(default=0.5, ge=0)
    """Weight of the next-token loss on the prompt."""
