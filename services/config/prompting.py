"""The section `prompting`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from services.config.env import Section


class PromptingSection(Section):
    """`gagpo eval --policy`: models that are asked and not trained."""

    concurrency: int = Field(default=8, ge=1)
    """Episodes that are played at once."""
    trials: int = Field(default=3, ge=1)
    """Reflexion: most trials of one task. The last one counts; a trial that wins ends the task."""
    memory: int = Field(default=3, ge=1)
    """Reflexion: number of newest reflections that the next trial reads."""
    key_file: Path | None = None
    """File whose first line is the key of the endpoint. None: $GAGPO_ENDPOINT_KEY, if it is set."""
    call_seconds: float = Field(default=300.0, gt=0)
    """Longest time of one request to the endpoint; then it is sent again."""
    wait_seconds: float = Field(default=900.0, gt=0)
    """Longest time that one call may wait for an endpoint that fails or limits the rate (status 429, Retry-After). Then
    the evaluation stops, and the same command continues it later. One that has never answered: 10 s. Steps wait as long
    for a service that the environment asks, such as a retriever."""
    step_seconds: float = Field(default=300.0, gt=0)
    """Longest time of one step of the environment."""
