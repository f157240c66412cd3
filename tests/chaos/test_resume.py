"""A run that is ended and resumed GAGPO_RESUMES times ends with the bits of an undisturbed one.

The short form is in test_run.py, which interrupts one run once and kills two of its parts. Here a run is ended N times,
by Ctrl-C or by the death of its driver, at moments that a seed draws: while it starts, or some seconds after a step.
"""

import os
import random
import time
from pathlib import Path

import pytest

from services.telemetry.metrics_file import read_rows

RESUMES = int(os.environ.get("GAGPO_RESUMES", "0"))
STEPS = 6 + 6 * RESUMES
SETTINGS = (
    f"steps={STEPS}", "env.max_steps=6", "model.layers=1", "model.intermediate=64", "sft.demos_per_game=1",
    "sft.minutes=0.05", "rollout.slots=8", "rollout.kv_cache_gb=0.25", "rollout.exact=true",
    "learner.groups_per_step=2", "learner.group_size=2", "learner.threads=1", "eval.every=4", "eval.episodes=4",
    "eval.panel=0", "eval.compare_cold_start=false", "checkpoint.every=2",
)
LIFE_S = 600.0

pytestmark = [
    pytest.mark.long,
    pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(3600 + 600 * RESUMES),
    pytest.mark.skipif(RESUMES == 0, reason="takes half a minute for each resume; python -m lab.resume_check N"),
]


def digests(folder: Path) -> dict[int, str]:
    return {row["step"]: row["digest"] for row in read_rows(folder / "evaluations.jsonl")}


def end_somewhere(run, moments: random.Random) -> str:
    """Ends a run at a moment that `moments` draws, and says how. The run may also finish before that moment."""
    taken, pause, in_the_middle = len(run.steps), moments.uniform(0.0, 3.0), moments.random() < 0.7
    pause = pause if in_the_middle else 6 * pause
    while in_the_middle and run.process.poll() is None and len(run.steps) == taken:
        time.sleep(0.05)
    after = f"step {run.steps[-1]}" if in_the_middle and run.steps else "the start"
    time.sleep(pause)
    if run.process.poll() is not None:
        assert run.process.returncode == 0, run.tail()
        return "it finished before its moment came"
    if moments.random() < 0.5:
        run.ctrl_c()
        assert run.end(LIFE_S) in (130, -2), run.tail()
        return f"Ctrl-C {pause:.1f} s after {after}"
    run.process.kill()
    run.end(LIFE_S)
    return f"driver killed {pause:.1f} s after {after}"


def test_resumed_at_random_moments_it_ends_with_the_bits_of_an_undisturbed_run(train, tmp_path_factory):
    runs_dir, moments = tmp_path_factory.mktemp("runs"), random.Random(0)
    calm, hunted = runs_dir / "calm", runs_dir / "hunted"
    undisturbed = train(calm, "--config", "alfworld-tiny", *SETTINGS, f"runs_dir={runs_dir}", "name=calm")
    undisturbed.wait_for("the end of the cold start", lambda: "starting Redis" in undisturbed.log.read_text(), LIFE_S)
    begin = ("--config", "alfworld-tiny", *SETTINGS, f"runs_dir={runs_dir}", "name=hunted", "sft.enabled=false",
             f"model.path={calm / 'model-cold-start'}")
    resume = ("--resume", str(hunted))
    for number in range(RESUMES):
        run = train(hunted, *(resume if (hunted / "run.json").exists() else begin))
        print(f"{number + 1}: {end_somewhere(run, moments)}, {len(run.steps)} steps", flush=True)
    run = train(hunted, *resume)
    for one in (run, undisturbed):
        assert one.end(LIFE_S + 60 * STEPS) == 0, one.tail()
    assert digests(hunted) == digests(calm)
    assert len(set(digests(calm).values())) == len(digests(calm)) > RESUMES / 2
