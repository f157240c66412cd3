"""An environment of verifiers with tools. Half of its reward is for the answer, half for having called a tool."""

import verifiers as vf
from datasets import Dataset


async def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


async def double(n: int) -> int:
    """Doubles a number.

    Args:
        n: the number
    """
    return 2 * n


def answered(completion, answer):
    return float(completion[-1]["content"] == answer)


def called(completion):
    return float(any(message["role"] == "tool" for message in completion))


def load_environment():
    rows = [{"question": f"What is twice the sum of {n} and 1?", "answer": str(2 * n + 2)} for n in range(5)]
    return vf.ToolEnv(tools=[add, double], dataset=Dataset.from_list(rows), max_turns=5,
                      rubric=vf.Rubric(funcs=[answered, called], weights=[0.5, 0.5]))
