"""Your own game: say the words in the right order. Train on it with `env.name=own_game:SPEC`."""

import random

import gagpo


class Echo:
    """Three words; each step says one, and the order is that of the task."""

    def reset(self, *, seed):
        self.left = random.Random(seed).sample(["red", "green", "blue", "white"], 3)
        return f"Say in this order: {' '.join(self.left)}.", {"admissible_actions": self.left}

    def step(self, action):
        right = action == self.left[0]
        self.left = self.left[1:]
        over = not right or not self.left
        return "Right." if right else "Wrong.", float(right and over), over, False, {"admissible_actions": self.left}


SPEC = gagpo.text_spec(Echo, name="echo", max_steps=3)
