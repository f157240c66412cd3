"""While samplers load, no message speaks of games."""

from deploy.training.loading import Loading
from services.controller.member import State


def test_the_view_speaks_of_games_once_every_worker_is_ready():
    beats: dict[str, object] = {}
    said: list[str] = []
    loading = Loading(lambda: {("rollout", "starting"): 2}, lambda: beats, waiting=said.append)
    playing = loading.after(lambda label, done, total: said.append(f"{label} {done}/{total}"))
    loading.then(lambda: said.append("reinforcement learning"))
    for name in ("learner", "rollout-0", "rollout-1"):
        beats[name] = {}
        loading.tick()
        playing("step-000000", 0, 48)
    assert said == ["vLLM loads the model and warms up, 0 of 2 samplers are ready",
                    "vLLM loads the model and warms up, 1 of 2 samplers are ready",
                    "reinforcement learning", "step-000000 0/48"]


def test_a_worker_without_a_place_or_a_sick_one_is_not_waited_for():
    beats: dict[str, object] = {}
    states: dict[tuple[str, State], int] = {("rollout", "unplaced"): 2, ("rollout", "sick"): 1}
    began: list[str] = []
    loading = Loading(lambda: states, lambda: beats, waiting=lambda _: None)
    loading.then(lambda: began.append("reinforcement learning"))
    loading.tick()
    assert began == []  # nobody can play yet
    states |= {("rollout", "unplaced"): 1, ("rollout", "starting"): 1}
    loading.tick()
    assert began == []
    beats["rollout-0"] = {}
    loading.tick()
    assert began == ["reinforcement learning"]
