"""While samplers load, no message speaks of games."""

from deploy.training.loading import Loading


def test_the_view_speaks_of_games_once_every_worker_is_ready():
    beats: dict[str, object] = {}
    said: list[str] = []
    loading = Loading(lambda: 2, lambda: beats, waiting=said.append)
    playing = loading.after(lambda label, done, total: said.append(f"{label} {done}/{total}"))
    loading.then(lambda: said.append("reinforcement learning"))
    for name in ("learner", "rollout-0", "rollout-1"):
        beats[name] = {}
        loading.tick()
        playing("step-000000", 0, 48)
    assert said == ["vLLM loads the model and warms up, 0 of 2 samplers are ready",
                    "vLLM loads the model and warms up, 1 of 2 samplers are ready",
                    "reinforcement learning", "step-000000 0/48"]
