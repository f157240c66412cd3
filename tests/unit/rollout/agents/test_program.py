"""An agent that is a program: its end, its children and what it is told."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from rollout.agents.program import AgentProgram
from rollout.agents.runner import find_agent
from rollout.agents.session import AgentSession
from services.config.secrets import VARIABLES
from services.errors import AgentFault, UserError


@pytest.fixture
def llm():
    return AgentSession(ticket=None, engine=None, text=None, prompt_tokens=1, response_tokens=1, max_calls=1,
                        base_url="http://127.0.0.1:1/v1", api_key="its own")


@pytest.mark.attack
async def test_it_gets_its_key_and_none_of_the_runs_secrets(monkeypatch: pytest.MonkeyPatch, llm):
    """A model may decide what such a program does."""
    stores = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "WANDB_API_KEY", "OTEL_EXPORTER_OTLP_HEADERS",
              "RAY_AUTH_TOKEN", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY", "OPENAI_API_KEY")
    for name in (*VARIABLES, *stores):
        monkeypatch.setenv(name, "c4n4ry")
    looks = ("import os; assert os.environ['OPENAI_API_KEY'] == os.environ['ANTHROPIC_API_KEY'] == 'its own'; "
             "assert os.environ['ANTHROPIC_BASE_URL'] + '/v1' == os.environ['OPENAI_BASE_URL']; "
             "assert 'c4n4ry' not in os.environ.values()")
    await AgentProgram(sys.executable, "-c", looks)("a task", llm, None)


async def test_the_episode_ends_with_the_program_and_so_do_its_children(tmp_path, llm):
    """The child holds the program's output open, as a browser or a server would."""
    async with asyncio.timeout(60):
        await AgentProgram("sh", "-c", f"sleep infinity & echo $! > {tmp_path}/child; exit 0")("a task", llm, None)
    await asyncio.to_thread(wait_until, lambda: ended(int((tmp_path / "child").read_text())))


async def test_a_child_in_a_session_of_its_own_ends_too(tmp_path, llm):
    """Agents start shells and browsers like that, to end them as one: each episode left some behind, for days."""
    starts = ("import subprocess, sys; child = subprocess.Popen(['sleep', 'infinity'], start_new_session=True); "
              "open(sys.argv[1], 'w').write(str(child.pid))")
    async with asyncio.timeout(60):
        await AgentProgram(sys.executable, "-c", starts, str(tmp_path / "child"))("a task", llm, None)
    child = int((tmp_path / "child").read_text())
    try:
        assert ended(child)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


async def test_a_program_that_is_stopped_ends_with_its_children(tmp_path, llm):
    script = f"sleep infinity & echo $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/child; wait"
    episode = asyncio.create_task(AgentProgram("sh", "-c", script)("a task", llm, None))
    await asyncio.to_thread(wait_until, (tmp_path / "child").exists)
    episode.cancel()
    await asyncio.wait([episode], timeout=60)
    assert episode.cancelled()
    await asyncio.to_thread(wait_until, lambda: ended(int((tmp_path / "child").read_text())))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
async def test_the_kernel_ends_it_with_its_worker(llm):
    """PR_GET_PDEATHSIG is 2."""
    asks = ("import ctypes; number = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(number)); "
            f"assert number.value == {int(signal.SIGTERM)}")
    await AgentProgram(sys.executable, "-c", asks)("a task", llm, None)


async def test_the_error_has_the_end_of_a_long_output(llm):
    prints = "import sys; print('x' * 3_000_000); print('no luck'); sys.exit(3)"
    with pytest.raises(AgentFault, match=r"ended with status 3: x+\nno luck$") as error:
        await AgentProgram(sys.executable, "-c", prints)("a task", llm, None)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(("words", "missing"), [
    (["absent.py"], True), (["-u", "absent.py"], True), (["there.py", "absent.py"], False),
    (["-c", "absent.py"], False), (["-X", "dev", "absent.py"], False), (["-m", "there", "absent.py"], False),
    (["--log=absent.py"], False), ([], False)])
def test_a_script_is_looked_for_where_it_can_be_told_from_other_words(words, missing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").touch()
    with pytest.raises(UserError, match=r"starts absent\.py") if missing else contextlib.nullcontext():
        AgentProgram("python3", *words).check("mine:agent")
    AgentProgram("sh", "-o", "absent.py").check("mine:agent")  # perhaps a file that it will write


def test_files_of_a_clusters_machines_are_not_looked_for_on_the_drivers(tmp_path, monkeypatch):
    (tmp_path / "elsewhere.py").write_text(
        "from rollout.agents.program import AgentProgram\n\nagent = AgentProgram('python3', 'absent.py')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert find_agent("elsewhere:agent", starts=False).command == ("python3", "absent.py")
    with pytest.raises(UserError, match="there is no such file in"):
        find_agent("elsewhere:agent")


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ended(pid: int) -> bool:
    """Whether a process that was killed has ended. Perhaps nobody reaps it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
