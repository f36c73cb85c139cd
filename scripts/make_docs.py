"""Write the documents that are made from code, so that they cannot say otherwise."""

from __future__ import annotations

from pathlib import Path

from auxconn import catalogue, tabledoc

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main() -> None:
    """Write each document and name it."""
    documents = {"metrics.md": catalogue.markdown(), "tables.md": tabledoc.markdown()}
    for name, text in documents.items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}")


if __name__ == "__main__":
    main()
