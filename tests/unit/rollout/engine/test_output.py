"""The last error of the engine's process is found among all that it prints."""

import os
import subprocess
import sys

from rollout.engine.engine import EngineOutput

PRINTED = """\
(EngineCore pid=9) INFO 11-22 00:07:27 [core.py:10] starting
(EngineCore pid=9) ERROR 11-22 00:07:27 [core.py:906] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-22 00:07:27 [core.py:906]   File "cpu_attn.py", line 3, in check
(EngineCore pid=9) ERROR 11-22 00:07:27 [core.py:906] ValueError: Head size 16 is not supported by CPU attention.
(MainProcess pid=8) ERROR 11-22 00:07:27 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore \
encountered an issue. See stack trace (above) for the root cause.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_the_last_error_that_says_something_is_told():
    output = EngineOutput()
    os.write(output.descriptor, PRINTED.encode())
    assert output.last_error() == "ValueError: Head size 16 is not supported by CPU attention."


REFUSED = """\
(MainProcess pid=8) ERROR 11-22 00:07:27 [registry.py:1120] ModuleNotFoundError: No module named 'torchvision'
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, {} [type=value_error, input_value=ArgsKwargs((), {{'model': 'm'}}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""


def test_the_last_error_of_vllms_argument_check_is_shown_unless_it_only_points_to_the_log():
    output = EngineOutput()
    os.write(output.descriptor, REFUSED.format("Model architectures ['X'] failed to be inspected.").encode())
    assert output.last_error() == "ModuleNotFoundError: No module named 'torchvision'"
    os.write(output.descriptor, REFUSED.format("max_model_len (200) is greater than 100.").encode())
    assert output.last_error() == "Value error, max_model_len (200) is greater than 100."


def test_a_process_that_prints_into_it_is_heard_also_after_its_end():
    output = EngineOutput()
    code = "import sys; sys.stdin.read(); sys.exit('torch.OutOfMemoryError: tried to allocate 2 GiB')"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=output.descriptor,
                               stderr=output.descriptor)
    assert output.last_error() is None
    process.communicate(timeout=60)
    assert output.last_error() == "torch.OutOfMemoryError: tried to allocate 2 GiB"
