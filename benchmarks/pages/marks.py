"""Tables of result files, put between marks in Markdown documents, so that no number is typed."""

import re
from collections.abc import Mapping
from pathlib import Path


def write_tables(document: str | Path, tables: Mapping[str, str]) -> None:
    """Put each table, or list of figures, between its marks, `<!-- table NAME -->` and `<!-- end -->`."""
    document = Path(document)
    text = document.read_text(encoding="utf-8")
    for name, table in tables.items():
        pattern = rf"(<!-- table {name} -->\n).*?(<!-- end -->)"
        if not re.search(pattern, text, re.S):
            raise ValueError(f"{document} has no place for the table {name!r}")
        text = re.sub(pattern, lambda match, table=table: match[1] + table + match[2], text, flags=re.S)  # type: ignore[misc]
    document.write_text(text, encoding="utf-8")
