"""Imported by the fork server first of all: it ends with the supervisor, and by a plain SIGTERM.

The ranks hold the fork server's pipe, so its own end-of-file would never come.
"""

import signal

from workshop.launch.processes import die_with_parent

die_with_parent()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
