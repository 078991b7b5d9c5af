"""``python -m workshop``: the same as the ``workshop`` command."""

from __future__ import annotations

import sys

from workshop.cli import main

if __name__ == "__main__":
    sys.exit(main())
