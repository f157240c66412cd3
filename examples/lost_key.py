r"""A search: the key lies in one of three places, and whoever has it opens the door. Four turns, a reward at the end.

Actions are letters, because small pretrained models answer with one. In this folder:

    gagpo train --config instruct-cpu name=lost-key env.name=lost_key:SPEC env.max_steps=4 \
      model.system_prompt="Answer with one letter."
"""

import random
import re
from dataclasses import replace

from gagpo.environments import ParsedAction, text_spec

PLACES = "bag", "basket", "box", "cup", "drawer", "jar", "pot", "shelf"
LETTERS = ["A", "B", "C", "D"]


class LostKey:
    """Whoever looks into each place once and then opens the door always wins."""

    def reset(self, *, seed):
        """Chooses three places, and the one that has the key."""
        draw = random.Random(seed)
        self.places = draw.sample(PLACES, 3)
        self.where, self.seen, self.has_key = draw.choice(self.places), set(), False
        options = [*(f"search the {place}" for place in self.places), "open the door"]
        choice = "\n".join(f"{letter}: {option}" for letter, option in zip(LETTERS, options, strict=True))
        return f"The door is locked. The key is somewhere here.\n{choice}", self.info()

    def step(self, action):
        """Looks into a place, or tries the door."""
        if action not in LETTERS:
            return "Nothing happens.", 0.0, False, False, self.info()
        if action == "D":
            return ("You are out.", 1.0, True, False, self.info()) if self.has_key else (
                "You have no key.", 0.0, False, False, self.info())
        place = self.places[LETTERS.index(action)]
        self.seen.add(place)
        self.has_key |= place == self.where
        text = f"You take the key out of the {place}." if place == self.where else f"The {place} has no key."
        return text, 0.0, False, False, self.info()

    def info(self):
        """Lists the actions. The state is what a player knows: the places that were searched, and who has the key."""
        return {"admissible_actions": LETTERS, "state_id": f"{sorted(self.seen)} {self.has_key}"}


class Letter:
    """One message: the game and what happened. An answer counts by the first letter that stands alone in it."""

    name, chat = "full", True

    def __init__(self, history):
        self.history = history

    def render(self, first, turns, now):
        """Returns the text of a turn."""
        texts = [turn.observation for turn in [*turns, now]][1:] if turns else []
        return "\n".join([first.observation, *texts[max(0, len(texts) - self.history):], "Answer:"])

    def parse(self, text):
        """Reads the letter. An answer without one is an invalid action."""
        letter = re.search(r"\b[A-D]\b", text)
        return ParsedAction(action=letter[0] if letter else text.strip(), valid=letter is not None)


SPEC = replace(text_spec(LostKey, name="lost-key", max_steps=4, prompts={"full": Letter}), stops=(":", ".", "\n"))
