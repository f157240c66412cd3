"""The policy in training as a player."""

import pytest
import torch

from learner.cold_start.course import Course
from learner.cold_start.scratch_model import scratch_model
from learner.cold_start.sft import Budget, train
from learner.cold_start.sft_data import Example, encode
from learner.cold_start.student import Student
from learner.cold_start.tokenizer import STOP, train_tokenizer
from services.config.tree import ModelSection, SftSection

EXAMPLES = [
    Example(prompt=f"Now: {'a cup 3 ' * length}a {noun} {number}\n", response=f"<action>take {noun} {number}</action>")
    for noun in ("mug", "pen") for number in (1, 2) for length in (0, 2)
]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def student() -> Student:
    tokenizer = train_tokenizer([text for one in EXAMPLES for text in (str(one.prompt), one.response)])
    model = scratch_model(ModelSection(hidden=32, layers=2, heads=1, intermediate=64), tokenizer, max_positions=128,
                          seed=0)
    rows = encode(tokenizer, EXAMPLES, chat=None, max_tokens=64)
    train(model, Course(rows, batch_rows=8, pad_id=tokenizer.pad_token_id, seed=1), SftSection(),
          budget=Budget(updates=200))
    return Student(model=model, tokenizer=tokenizer, stops=(STOP,), temperature=0.1, max_prompt_tokens=40,
                   max_response_tokens=16)


def test_each_prompt_gets_its_own_answer_whatever_its_length(student):
    """Prompts of different lengths are padded to one batch: an answer must not depend on its neighbours."""
    assert student.answers([str(one.prompt) for one in EXAMPLES], seed=0) == [one.response for one in EXAMPLES]


def test_a_prompt_that_is_too_long_gets_no_answer(student):
    long = "Now: " + "a cup 3 " * 40
    assert student.answers([long, str(EXAMPLES[0].prompt)], seed=0) == ["", EXAMPLES[0].response]
    assert student.answers([long], seed=0) == [""]


def test_answers_are_a_function_of_the_seed_and_leave_torch_alone(student):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    prompts = ["Now: a mug 2\n"] * 3
    assert student.answers(prompts, seed=1) == student.answers(prompts, seed=1)
    assert torch.equal(before, torch.random.get_rng_state())
