"""Sphinx's settings. ``make docs`` writes the pages' sources first (`tools.docs.build`)."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

project = "workshop"
html_title = "workshop"
language = "en"
extensions = ["myst_nb", "tools.docs.extension"]
default_role = "code"
smartquotes = False
exclude_patterns = ["_static"]
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb", ".ipynb": "myst-nb"}

# Outputs are shown as they are stored; nothing is run, and no widget's script is fetched.
nb_execution_mode = "off"
nb_ipywidgets_js: dict[str, dict[str, str]] = {}
nb_merge_streams = True
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure", "mystnb.unknown_mime_type"]

html_theme = "furo"
html_math_renderer = "mathml"
html_static_path: list[str] = []  # `tools.docs.build` names the folder: pictures are written into it
html_css_files = ["docs.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_last_updated_fmt = None
html_use_index = False
toc_object_entries = False
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True
