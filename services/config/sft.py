"""The section `sft`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

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
    """Share of demonstrated turns that are random or corrupted. They are executed but not trained on."""
    jump: float = Field(default=0.2, ge=0, le=1)
    """ALFWorld: probability that the scripted player searches a random place next."""
    batch_rows: int = Field(default=16, ge=1)
    """Rows of one update."""
    lr: float = Field(default=3e-3, gt=0)
    """Learning rate of AdamW."""
    prompt_loss: float = Field(default=0.5, ge=0)
    """Weight of the next-token loss on the prompt."""
    dagger_rounds: int = Field(default=0, ge=0, le=1000)
    """Rounds of DAgger (arXiv 1011.0686), spread evenly over the training: the model plays, and learns what the
    scripted player would have done in the states that it came to. 0: it learns from demonstrations alone."""
    dagger_episodes: int = Field(default=128, ge=1)
    """Episodes of one round, each of another training game. The model plays them at eval.temperature."""

    @model_validator(mode="after")
    def _needs_a_player(self) -> SftSection:
        if self.dagger_rounds and self.file is not None:
            raise ValueError(f"sft.dagger_rounds={self.dagger_rounds} asks a scripted player, and sft.file replaces "
                             "it: set sft.dagger_rounds=0, or leave sft.file out")
        return self
