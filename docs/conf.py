"""Sphinx configuration: Markdown pages by MyST, and a reference from docstrings. Builds offline."""

import dataclasses
import inspect
import re
import zlib
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError

import hopstream
from hopstream.checks import Settings

HERE = Path(__file__).parent
OTHER_PROJECTS = {
    "python": "https://docs.python.org/3",
    "numpy": "https://numpy.org/doc/stable",
    "torch": "https://docs.pytorch.org/docs/stable",
    "pyg": "https://pytorch-geometric.readthedocs.io/en/latest",
}


def write_inventory(name: str) -> str:
    """Write the Sphinx inventory of the objects in ``inventories/NAME.txt``; returns its path."""
    lines = (HERE / "inventories" / f"{name}.txt").read_text().splitlines()
    entries = "".join("{} {} 1 {} -\n".format(*line.split()) for line in lines)
    head = f"# Sphinx inventory version 2\n# Project: {name}\n# Version: \n# The rest is compressed by zlib.\n"
    path = HERE / "_build" / f"{name}.inv"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(head.encode() + zlib.compress(entries.encode()))
    return str(path.relative_to(HERE))


DASH = " \u2013 "


def keep_colons(_app: object, kind: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Keep colons in the text of properties and results; Napoleon would read the words before a colon as a type."""
    if kind in ("property", "attribute") and lines:
        lines[0] = lines[0].replace(": ", DASH)
    first = lines.index("Returns:") + 1 if "Returns:" in lines else len(lines)
    for at in range(first, len(lines)):
        if lines[at] and not lines[at].startswith(" "):
            break
        lines[at] = re.sub(r"^    (?! )(\w+): ", rf"    **\1**{DASH}", lines[at])
        lines[at] = lines[at].replace(": ", DASH) if at == first else lines[at]


def show_settings(_app: object, kind: str, _name: str, value: object, _options: object, lines: list[str]) -> None:
    """Show the fields of a settings record, which may be documented by the help of a flag alone."""
    if kind != "class" or not (isinstance(value, type) and issubclass(value, Settings)):
        return
    own = (inspect.getdoc(value) or "").splitlines()
    if lines[:1] != own[:1]:  # the docstring of __new__ comes in a call of its own
        lines.clear()
        return
    lines[:] = own
    helps = {one.name: one.metadata["help"] for one in dataclasses.fields(value) if "help" in one.metadata}
    if helps and "Attributes:" not in lines:
        lines[1:1] = ["", "Attributes:", *(f"    {name}: {text}." for name, text in helps.items()), ""]


def sign_settings(
    _app: object, kind: str, _name: str, value: object, _options: object, _signature: object, _returns: object
) -> tuple[str, None] | None:
    """Show the constructor of a settings record with its fields."""
    if kind != "class" or not (isinstance(value, type) and issubclass(value, Settings)):
        return None
    signature = inspect.signature(value.__init__)
    shown = [one.replace(annotation=inspect.Parameter.empty) for one in list(signature.parameters.values())[1:]]
    return str(signature.replace(parameters=shown, return_annotation=inspect.Signature.empty)), None


def check_reference(_app: object, env: BuildEnvironment) -> None:
    """Fail if the reference lacks a public name."""
    found = {name for name, _, _, _, _, _ in env.get_domain("py").get_objects()}
    for loader in ("NeighborLoader", "LinkNeighborLoader"):
        methods = {
            f"hopstream.load.{loader}.{name}" for name in ("state_dict", "load_state_dict", "set_epoch", "close")
        }
        if not methods <= found:
            raise ExtensionError(f"docs/reference lacks {sorted(methods - found)}")
    modules = [name for name in hopstream.__all__ if name != "errors" and inspect.ismodule(getattr(hopstream, name))]
    public = {f"hopstream.{module}.{name}" for module in modules for name in getattr(hopstream, module).__all__}
    missing = sorted(public - found)
    if missing:
        raise ExtensionError(f"docs/reference lacks {missing}")


def setup(app: Sphinx) -> None:
    """Change docstrings before Napoleon reads them."""
    app.connect("autodoc-process-docstring", show_settings, priority=300)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
    app.connect("autodoc-process-signature", sign_settings)
    app.connect("env-check-consistency", check_reference)


project = author = copyright = "Hopstream"
version = release = hopstream.__version__

extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx", "sphinx.ext.napoleon", "sphinx_copybutton",
]  # fmt: skip
root_doc = "index"
exclude_patterns = ["_build", "contributing", "inventories"]
myst_heading_anchors = 4
suppress_warnings = ["myst.xref_missing"]  # tests/docs/test_links.py checks links; these lead to files outside the site

intersphinx_mapping = {name: (url, write_inventory(name)) for name, url in OTHER_PROJECTS.items()}
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autoclass_content = "both"
maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_use_ivar = True
nitpicky = True
nitpick_ignore = [
    *(("py:class", name) for name in ("AnyPath", "hopstream.places.remote_path.RemotePath")),  # a Path, or one at a URI
    *(("py:class", name) for name in ("Array", "Column", "IntArray")),  # docstrings give dtypes and shapes
]

html_theme = "furo"  # its sidebar lists all pages under captions, so that sections need no pages of their own
html_title = "Hopstream"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["tables.css"]
