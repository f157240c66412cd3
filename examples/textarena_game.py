"""A game of TextArena as an environment: FrozenLake, whose walker must reach the goal and fall into no hole.

It needs the package `textarena` where environment servers run. Other games of one player differ in the name and in what
they call an action.
"""

from typing import Any

from gagpo.environments import text_spec

MOVES = ["up", "down", "left", "right"]


class FrozenLake:
    """One play. TextArena tells what happened since the last look; a move is written in brackets."""

    def reset(self, *, seed: int) -> tuple[str, dict[str, Any]]:
        """Makes the lake of this seed."""
        import textarena

        self._game = textarena.make("FrozenLake-v0-random-raw")
        self._game.reset(num_players=1, seed=seed)
        return self._told(), {"admissible_actions": MOVES}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Moves. The game rewards the share of the way in the end, and reaching the goal with 1."""
        done, _ = self._game.step(action=f"[{action}]")
        reward = self._game.close()[0][0] if done else 0.0
        return self._told(), reward, done, False, {"admissible_actions": MOVES, "won": reward == 1.0}

    def _told(self) -> str:
        _, said = self._game.get_observation()
        return "\n".join(text for _, text, kind in said if kind.name != "PLAYER_ACTION")


SPEC = text_spec(FrozenLake, name="frozenlake", version="textarena-0.7", max_steps=30)
