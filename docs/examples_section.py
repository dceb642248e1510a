"""For the API reference: the docstrings' ``Example:`` is a section of code, which griffe knows as ``Examples:``."""

import re
from typing import Any

import griffe


class ExamplesSection(griffe.Extension):
    """Rename the section before docstrings are parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.M)
