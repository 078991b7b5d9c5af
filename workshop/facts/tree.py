"""What ships with the workshop beside its code: lessons, published tables, measurements, examples.

In a clone, which an editable install uses too, these folders stand at the top of the repository. A wheel has
no such place, so its build lays them inside the package, in the same order (``tools/wheel.py``).

    ROOT / "data" / "published"        the tables, in either
"""

from __future__ import annotations

from pathlib import Path

DISTRIBUTION = "large-model-workshop"  # for pip; on the index `workshop` is another project
_PACKAGE = Path(__file__).resolve().parents[1]
INSIDE = _PACKAGE / "tree"  # only in a wheel
FROM_WHEEL = INSIDE.is_dir()
ROOT = INSIDE if FROM_WHEEL else _PACKAGE.parent
