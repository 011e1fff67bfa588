"""Sphinx's settings for ``make docs``. Warnings are errors there."""

from __future__ import annotations

import builtins
import re
from typing import cast

import django
from django.conf import settings
from docutils.nodes import document
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

import nsq
from nsq import aio

project = "nsq"
author = "the nsq authors"
version = release = nsq.__version__
html_title = f"nsq {version}: NSQ for Python"
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_js_files = [("file-search.js", {"priority": 900})]
html_copy_source = html_show_sourcelink = html_show_copyright = html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
exclude_patterns = ["static"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
pygments_dark_style = "github-dark"  # furo's own underlines names, as if they were links
highlight_language = "default"

# The pages. Headings have the anchors that GitHub gives them.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
copybutton_prompt_text = "$ "

# The reference. Docstrings are plain text with indented code; names of parameters stay as they are written.
autodoc_default_options = {
    "members": True,
    "undoc-members": True,
    "member-order": "bysource",
    "exclude-members": "abandon",
}
autodoc_inherit_docstrings = False
autodoc_typehints_format = "short"
autodoc_preserve_defaults = False  # it takes signatures from the source, where a publish has **options
autodoc_mock_imports = ["pyspark", "pyarrow", "pandas", "matplotlib", "obstore", "deltalake"]
python_maximum_signature_line_length = 80
maximum_signature_line_length = 80

# Models can be imported in a project only.
settings.configure(INSTALLED_APPS=["nsq.contrib.django", "nsq.contrib.django.outbox"])
django.setup()

# The page has a table of the options; signatures need not repeat it.
for client in (nsq.Consumer, nsq.Producer, aio.Consumer, aio.Producer):
    del client.__signature__

FINAL_UNDERSCORE = re.compile(r"(?<![\w`])(\w+)_(?![\w`])")


def as_restructured_text(_app: Sphinx, *of_object: object) -> None:
    """Put ``::`` before a docstring's blocks that are indented by four spaces; escape a word's last _. Drop
    what Python itself says about the fields of a NamedTuple.
    """
    lines = cast(list[str], of_object[-1])
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()
    marked: list[str] = []
    for line in lines:
        starts = line.startswith("    ") and marked and not marked[-1]
        before = next((each for each in reversed(marked) if each), "")
        if starts and not before.startswith("    "):
            marked += ["::", ""]
        marked.append(line if line.startswith("    ") else FINAL_UNDERSCORE.sub(r"\1\\_", line))
    lines[:] = marked


def unlink_builtins(_app: Sphinx, doctree: document) -> None:
    """Leave ``bytes`` in a signature unlinked: Sphinx would link it to an attribute that is called so."""
    for reference in list(doctree.findall(pending_xref)):
        if hasattr(builtins, reference.get("reftarget", "")):
            reference.replace_self(reference.children)


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", as_restructured_text)
    app.connect("doctree-read", unlink_builtins)
