"""Sphinx configuration: Markdown pages by MyST, and a reference from docstrings."""

import hopstream

project = "Hopstream"
author = "Hopstream"
copyright = "Hopstream"
version = release = hopstream.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "index"
exclude_patterns = ["_build", "README.md"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]
nitpicky = True

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "pydata_sphinx_theme"
html_title = "Hopstream"
html_static_path = ["_static"]
html_show_sourcelink = False
html_theme_options = {"show_prev_next": True, "navigation_with_keys": False, "header_links_before_dropdown": 7}
