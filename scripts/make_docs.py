"""Write the documents that are made from code, so that they cannot say otherwise."""

from __future__ import annotations

from pathlib import Path

from auxconn import catalogue, tabledoc
from auxconn.exporter import document, grafana, rules

ROOT = Path(__file__).resolve().parent.parent

DOCUMENTS = {
    "docs/metrics.md": catalogue.markdown,
    "docs/tables.md": tabledoc.markdown,
    "docs/prometheus.md": document.markdown,
    "deploy/grafana-dashboard.json": grafana.text,
    "deploy/prometheus-rules.yml": rules.yaml,
    "deploy/prometheus.yml": rules.scrape_config,
}
"""Each file and what makes its text."""


def main() -> None:
    """Write each document and name it."""
    for name, text in DOCUMENTS.items():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(text(), encoding="utf-8")
        print(name)


if __name__ == "__main__":
    main()
