"""What every test starts from: one thread a process, no variables of another launcher, a stop button that works.

A kernel's engine starts when a cell needs it: ahead of that it would import torch for notebooks without ranks too.

A shell that starts a command in the background has it ignore SIGINT, and what a process ignores its children ignore
too: the notebooks, engines and ranks of these tests would not hear the stop button. So the usual handler is put back
before anything is started.

A run starts thousands of Pythons. Where the environment says not to write bytecode, each of them would compile every
file of ours that it imports, and each worker would rewrite every test: what one has compiled is there for all.
"""

import gc
import os
import signal
import sys

import pytest

from tests import called_exercises, schedule, second_try, turns, warm_engines, warm_kernels
from tests import loaded_engine as loaded
from tests.loaded_engine import loaded_engine  # noqa: F401 - a fixture for all
from workshop.site.current import launcher_variables

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("WORKSHOP_WARM_UP", "off")
# torch.compile takes the CPU's instructions as the CPU names them: trying them out compiles for seven seconds of a
# core, for every empty cache.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
called_exercises.start(os.environ)
for _name in launcher_variables(os.environ):
    del os.environ[_name]
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


SELDOM = (20_000, 20, 20)
"""Collections of a worker, which runs thousands of tests: usually there is one for every 700 new objects."""
OURS = ("WORKSHOP_", "HF_", "NCCL_", "GLOO_", "TP_SOCKET", "SLURM_")


@pytest.fixture(autouse=True)
def _variables_as_before():
    """What code under test sets for its own process is gone with the test: the next one may look for such names."""
    before = {name: value for name, value in os.environ.items() if name.startswith(OURS)}
    yield
    for name in [name for name in os.environ if name.startswith(OURS) and name not in before]:
        del os.environ[name]
    os.environ.update(before)


def pytest_configure(config):
    """Ideas in files of their own."""
    for plugin in (schedule, second_try, loaded, turns, warm_engines, warm_kernels):
        config.pluginmanager.register(plugin)
    config.pluginmanager.register(called_exercises.CalledExercises())


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What the tests import stays: the garbage collector looks through torch and its like neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*SELDOM)
        gc.enable()
