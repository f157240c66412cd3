"""A session that failed ends at once, in the thread that has played it, whatever its exception is chained to."""

import gc
import threading
import weakref

import msgspec
import pytest

from envservice.adapters.gymnasium import TextEnvironment
from envservice.base import Outcome
from envservice.server.batches import Batches
from envservice.server.metrics import ServerMetrics
from envservice.server.sessions import SessionStore
from services.telemetry.logs import configure_logs


class Page:
    """A session made by hand, which releases what it holds outside. It names the errors of its browser anew."""

    def __init__(self, closed):
        weakref.finalize(self, lambda: closed.append(threading.current_thread().name.partition("_")[0]))

    def reset(self):
        return Outcome(observation="A page.", admissible_actions=[])

    def step(self, action):
        try:
            self._click()
        except KeyError as error:
            if action == "raised during":
                raise ValueError(action)  # noqa: B904 - as a game may write it
            if action != "raised together":
                raise ValueError(action) from (error if action == "raised from" else None)
            failed = [error]
        raise ExceptionGroup(action, [ExceptionGroup("of one page", failed)])

    def _click(self):
        raise KeyError("no such link")


class Pages(TextEnvironment):
    def __init__(self, closed):
        super().__init__(None, name="pages", version="1", sizes=(1, 1, 1))
        self._closed = closed

    def open(self, task):
        return Page(self._closed)


@pytest.fixture
def no_collection(tmp_path):
    """Keeps cycles of objects meanwhile: a session must not wait for their collection."""
    configure_logs(tmp_path, show=None)
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("action", ["raised from", "raised from None", "raised during", "raised together"])
async def test_a_session_is_not_held_by_the_frames_of_an_earlier_exception(action, no_collection):
    closed = []
    store = SessionStore(Pages(closed))
    batches = Batches(store, ServerMetrics("pages", store), threaded=True)

    async def told(verb, **fields):
        element = {"episode_id": "e", "task": "pages/train/00000000", **fields}
        return msgspec.json.decode((await batches.answer(verb, msgspec.json.encode([element]), "")).body)[0]

    first = await told(batches.reset)
    failed = await told(batches.step, actions=[], action=action, digest=first["digest"])
    assert failed["type"] == "env_fault"
    assert failed["message"] in (f"ValueError: {action}", f"ExceptionGroup: {action} (1 sub-exception)")
    assert closed == ["engine"]
