"""Read by the engines that `tests.loaded_engine` starts: their fork server imports some modules more.

The variable names them; the last is this folder's own. The supervisor only lays the function ready for the fork
server, which is a fork of it.
"""

import os

if "TESTS_LOADED" in os.environ:
    from multiprocessing import forkserver

    _main = forkserver.main

    def main(listener, alive, preload, **more):
        """The fork server, with what the tests want loaded behind what the engine wants loaded."""
        _main(listener, alive, [*preload, *os.environ.pop("TESTS_LOADED").split(), "frozen"], **more)

    forkserver.main = main
