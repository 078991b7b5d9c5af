"""``python -m tools.docs``: build the pages and check them; the exit code says whether all is well."""

import sys

from tools.docs.build import main

if __name__ == "__main__":
    sys.exit(main())
