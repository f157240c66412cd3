"""The knowledge of a reader of the texts, and the prompt that shows it."""

from envservice.alfworld.memory import GameMemory, recall
from envservice.alfworld.prompts import AlfworldCompactTemplate, AlfworldMemoryChatTemplate, AlfworldMemoryTemplate
from envservice.base import Outcome, Turn

START = [f"go to {name}" for name in ("cabinet 1", "cabinet 2", "countertop 1", "fridge 1", "microwave 1")]


def first(task: str) -> Outcome:
    return Outcome(observation=f"Welcome.\n\nYour task is to: {task}.", admissible_actions=[*START, "help", "look"])


def turns(task: str, *texts: tuple[str, str]) -> list[Turn]:
    """The turns of actions with the observations that they led to; the last observation belongs to no turn."""
    seen = [first(task).observation, *(text for _, text in texts)]
    return [Turn(observation=before, action=action, admissible=True)
            for before, (action, _) in zip(seen, texts, strict=False)]


def test_memory_follows_an_object_through_hands_and_machines():
    memory = GameMemory(first("heat some mug and put it in cabinet"))
    assert memory.unseen() == ["cabinet 1", "cabinet 2", "countertop 1", "fridge 1", "microwave 1"]
    memory.read("You arrive at cabinet 1. The cabinet 1 is closed.")
    assert "cabinet 1" in memory.unseen()
    memory.read("You open the cabinet 1. The cabinet 1 is open. In it, you see a mug 2, a egg 1, and a mug 1.")
    assert memory.contents == {"cabinet 1": ["mug 2", "egg 1", "mug 1"]}
    memory.read("You pick up the mug 2 from the cabinet 1.")
    assert (memory.held, memory.contents["cabinet 1"]) == ("mug 2", ["egg 1", "mug 1"])
    memory.read("You heat the mug 2 using the microwave 1.")
    memory.read("You clean the mug 2 using the sinkbasin 1.")
    assert memory.treated["mug 2"] == {"heat", "clean"}
    memory.read("You cool the mug 2 using the fridge 1.")
    assert memory.treated["mug 2"] == {"cool", "clean"}
    memory.read("You move the mug 2 to the countertop 1.")
    assert (memory.held, memory.contents["countertop 1"]) == ("", ["mug 2"])
    memory.read("On the countertop 1, you see nothing.")
    assert memory.contents["countertop 1"] == []
    assert memory.find("mug", outside="cabinet 1") is None
    memory.read("Nothing happens.")
    assert memory.find("mug") == ("mug 1", "cabinet 1")


TWO = "put two mug in cabinet"
BROUGHT = (
    ("go to countertop 1", "You arrive at countertop 1. On the countertop 1, you see a mug 2, a egg 1, and a mug 1."),
    ("take mug 2 from countertop 1", "You pick up the mug 2 from the countertop 1."),
    ("clean mug 2 with sinkbasin 1", "You clean the mug 2 using the sinkbasin 1."),
)


PLACED = (*BROUGHT, ("move mug 2 to cabinet 1", "You move the mug 2 to the cabinet 1."))


def shown(*texts: tuple[str, str], task: str = TWO) -> list[str]:
    now = Outcome(observation=texts[-1][1], admissible_actions=START) if texts else first(task)
    return AlfworldMemoryTemplate(1).render(first(task), turns(task, *texts), now).splitlines()


def test_a_prompt_with_memory_names_what_is_held_and_where_the_tasks_objects_are():
    assert shown()[:3] == ["Held: -", "Found: -", "Placed: -"]
    assert shown(*BROUGHT[:1])[:3] == ["Held: -", "Found: mug 2 in countertop 1, mug 1 in countertop 1", "Placed: -"]
    assert shown(*BROUGHT)[:3] == ["Held: mug 2 clean", "Found: mug 1 in countertop 1", "Placed: -"]
    assert shown(*PLACED)[:3] == ["Held: -", "Found: mug 1 in countertop 1", "Placed: mug 2 in cabinet 1"]


def test_an_object_is_placed_once_it_is_treated_as_the_task_wants_it():
    assert shown(*PLACED, task="put a clean mug in cabinet")[2] == "Placed: mug 2 in cabinet 1"
    for task in ("heat some mug and put it in cabinet", "put a hot mug in cabinet"):
        assert shown(*PLACED, task=task)[1:3] == ["Found: mug 1 in countertop 1, mug 2 in cabinet 1", "Placed: -"]


def test_the_rest_of_it_is_the_compact_prompt():
    now = Outcome(observation=BROUGHT[-1][1], admissible_actions=START)
    compact = AlfworldCompactTemplate(1).render(first(TWO), turns(TWO, *BROUGHT), now)
    assert shown(*BROUGHT)[3:] == compact.splitlines()


def test_memory_is_the_same_however_it_is_read():
    now = Outcome(observation=BROUGHT[-1][1], admissible_actions=START)
    step_by_step = GameMemory(first(TWO))
    for text in (first(TWO).observation, *(text for _, text in BROUGHT)):
        step_by_step.read(text)
    assert vars(recall(first(TWO), turns(TWO, *BROUGHT), now)) == vars(step_by_step)


def test_the_chat_form_adds_the_form_of_answers_alone():
    now = Outcome(observation=BROUGHT[0][1], admissible_actions=START)
    raw, chat = (made(3).render(first(TWO), turns(TWO, BROUGHT[0]), now)
                 for made in (AlfworldMemoryTemplate, AlfworldMemoryChatTemplate))
    assert chat == raw + "Answer with <think>a few words</think><action>one action</action>."
    assert (AlfworldMemoryTemplate.chat, AlfworldMemoryChatTemplate.chat) == (False, True)
