"""The progress bar: shown to who watches, silent otherwise."""

from __future__ import annotations

import pytest

from auxconn.lab.bar import progress_bar


def test_silent_when_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    for shown in (None, False):
        with progress_bar(10, True, shown) as advance:
            advance(3, 1)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("requests", "words"), [(True, "7/10"), (False, "2/10")], ids=["requests", "steps"]
)
def test_counts_what_it_is_asked_to(
    requests: bool, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar(10, requests, True) as advance:
        advance(3, 1)
        advance(4, 1)
    shown = capsys.readouterr().err
    assert words in shown
    assert ("requests" if requests else "steps") in shown
