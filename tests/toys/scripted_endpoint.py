"""An endpoint whose replies a test gives, and a clock for the waits between them."""

from collections.abc import Callable

import httpx

from rollout.prompting.endpoint import EndpointModel
from services.config.sections import PromptingSection

GOOD = {"choices": [{"message": {"role": "assistant", "content": "Action: look"}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
ASKED = [{"role": "user", "content": "hello"}]


class Clock:
    """Time that passes only in sleep."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, list[float]()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def model(answers: Callable[[httpx.Request], httpx.Response], clock: Clock, **settings) -> EndpointModel:
    http = httpx.AsyncClient(base_url="http://host/v1/", transport=httpx.MockTransport(answers))
    return EndpointModel(http=http, model="m", settings=PromptingSection(**settings), temperature=0.4, max_tokens=64,
                         clock=lambda: clock.now, sleep=clock.sleep)


def in_turn(*replies: httpx.Response | Exception) -> Callable[[httpx.Request], httpx.Response]:
    left = iter(replies)

    def answer(_: httpx.Request) -> httpx.Response:
        reply = next(left)
        if isinstance(reply, Exception):
            raise reply
        return reply

    return answer
