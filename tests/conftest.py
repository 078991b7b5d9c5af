"""What every test starts from: one thread a process, and no variables of another launcher."""

import os

from workshop.launch.environment import leaked

os.environ.setdefault("OMP_NUM_THREADS", "1")
for _name in leaked(os.environ):
    del os.environ[_name]
