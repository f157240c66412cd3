"""A taskset of verifiers 0.4 whose environment says whether a number is too high. The last row has 7."""

import verifiers.v1 as vf


class Number(vf.TaskData):
    answer: str


class Guess(vf.Task[Number]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)


class Guesses(vf.Taskset[Guess]):
    def load(self):
        return [Guess(Number(prompt="Guess a number from 1 to 7.", answer=str(number)), self.config.task)
                for number in range(1, 8)]


class HintsConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig()


class Hints(vf.Env[HintsConfig]):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as game:
            guess = await game.turn()
            while not guess.terminated and guess.last_reply != task.data.answer:
                guess = await game.turn("too low" if guess.last_reply < task.data.answer else "too high")


__all__ = ["Guesses", "Hints"]
