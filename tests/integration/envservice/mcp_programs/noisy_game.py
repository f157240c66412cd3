"""A game that prints, as engines do, and breaks if it is told to."""

from gagpo.environments import text_spec


class Noisy:
    def reset(self, *, seed):
        print("engine 1.0", flush=True)
        return f"Door {seed}.", {"admissible_actions": ["open", "knock"]}

    def step(self, action):
        print("engine: step", flush=True)
        if action == "break":
            raise RuntimeError("the door fell on the engine")
        if action == "open":
            return "Light.", 1.0, True, False, {"won": True}
        return "Nobody.", 0.25, False, False, {"admissible_actions": ["open"]}


SPEC = text_spec(Noisy, name="noisy")
