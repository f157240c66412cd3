"""An environment of verifiers of several turns: its user says whether a number is too high. The last row has 7."""

import verifiers as vf
from datasets import Dataset


class Guess(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **_):
        said, secret = messages[-1].content, state["answer"]
        if said == "break":
            raise vf.InfraError("the sandbox is gone")
        if said == secret:
            state["final_env_response"] = [{"role": "user", "content": "Right."}]
            return state["final_env_response"]
        return [{"role": "user", "content": "too low" if said < secret else "too high"}]


def right(completion):
    return float(completion[-1]["content"] == "Right.")


def together(states):
    return [0.0 for _ in states]


def load_environment(scored=right):
    rows = [{"question": "Guess a number from 1 to 7.", "answer": str(number)} for number in range(1, 8)]
    funcs = [{"together": together}.get(scored, scored)]
    return Guess(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=funcs), max_turns=4)
