"""A game on OpenEnv's own server: guess a number from 1 to 9. `guess.py PORT`."""

import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Guess(Action):
    number: str


class Heard(Observation):
    said: str


class Guessing(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **_):
        self._number, self._tries = 1 + seed % 9, 0
        return Heard(said="Guess a number from 1 to 9.")

    def step(self, action, **_):
        self._tries += 1
        guess = int(action.number) if action.number.isdigit() else 0
        right = guess == self._number
        said = "Right." if right else "More." if guess < self._number else "Less."
        return Heard(said=said, reward=float(right), done=right or self._tries == 5)

    @property
    def state(self):
        return State(step_count=self._tries)


app = create_fastapi_app(Guessing, Guess, Heard, max_concurrent_envs=8)
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
