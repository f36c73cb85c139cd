"""The quickstart notebook runs as it stands, and its cells show what they say they show."""

from __future__ import annotations

import re

import nbformat
import pytest
from nbclient import NotebookClient


@pytest.fixture(scope="module")
def cells(root):
    """The code cells of the notebook, run once in a kernel of its own."""
    folder = root / "notebooks"
    notebook = nbformat.read(folder / "00_quickstart.ipynb", as_version=4)
    client = NotebookClient(
        notebook,
        timeout=100,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell):
    """Plain text of what a cell shows at its end."""
    texts = [
        output["data"].get("text/plain", "")
        for output in cell.outputs
        if output.output_type == "execute_result"
    ]
    return "\n".join(texts)


def the_cell(cells, code):
    (found,) = [cell for cell in cells if code in cell.source]
    return found


@pytest.mark.timeout(150)
def test_it_is_short_and_says_nothing_on_stderr(cells):
    lines = [
        line
        for cell in cells
        for line in cell.source.splitlines()
        if line.strip() and not line.startswith(("import ", "from "))
    ]
    assert len(lines) <= 22
    for cell in cells:
        for output in cell.outputs:
            told = output.get("text", "")
            # ipykernel's own word on its transport.
            assert output.output_type != "stream" or "IPKernelApp" in told, told


def test_the_ratio_is_of_two_counters(cells):
    told = shown(the_cell(cells, "queried:,"))
    hit, queried, share = re.fullmatch(
        r"'([\d,]+) of ([\d,]+) tokens hit: ([\d.]+)%'", told
    ).groups()
    hit, queried = (int(number.replace(",", "")) for number in (hit, queried))
    assert 0 < hit < queried
    assert float(share) == round(100 * hit / queried, 1)


def test_the_live_view_is_shown(cells):
    (output,) = [
        output
        for output in the_cell(cells, "live(lab)").outputs
        if output.output_type == "execute_result"
    ]
    assert "Dashboard(" in output["data"]["text/plain"]
    assert "application/vnd.holoviews_exec.v0+json" in output["data"]


def test_the_change_of_capacity_is_in_the_frames(cells):
    (output,) = the_cell(cells, "lab.set_capacity").outputs
    rows = re.findall(r"<tr>.*?</tr>", output["data"]["text/html"], re.DOTALL)
    numbers = [list(map(int, re.findall(r"<td>(\d+)</td>", row))) for row in rows]
    numbers = [row for row in numbers if row]
    before, after = numbers[0], numbers[-1]
    assert (before[3], after[3]) == (1600, 160)
    retained, on_gpu, loading, capacity = after
    assert retained < before[0]
    assert retained - on_gpu - loading <= capacity, "the rest has to go"
    assert "capacity" in shown(the_cell(cells, "events.kind"))
    assert "160" in shown(the_cell(cells, "events.kind"))
