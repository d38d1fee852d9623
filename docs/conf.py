"""How the documentation is built: `make docs`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

from fairstream import __version__

project = "fairstream"
author = "The fairstream authors"
copyright = author
version = release = __version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_nb",
    "sphinx_design",
    "cli_reference",
    "http_reference",
]
exclude_patterns = ["_build", "_templates"]
nitpicky = True

# ── Markdown and notebooks ───────────────────────────────────────────────────────────────
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
myst_dmath_double_inline = False
nb_execution_mode = "force"  # tutorials are run whenever the site is built: what they show is what the code does
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_execution_in_temp = True  # files that a tutorial writes are not left behind
nb_merge_streams = True

# ── the reference from the docstrings ────────────────────────────────────────────────────
autosummary_generate = True
autodoc_typehints = "none"  # the docstrings say what the parameters are
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False
default_role = "py:obj"
# Docstrings name parameters, fields and modules of other packages in the same way as things that can be linked to.
nitpick_ignore_regex = [(r"py:(obj|class|exc|attr|meth)", r".*")]

# ── how it looks ─────────────────────────────────────────────────────────────────────────
html_theme = "pydata_sphinx_theme"
html_title = "fairstream"
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "fairstream"},
    "show_prev_next": False,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": []}
