"""The browser that the tests drive is the one people name."""

from __future__ import annotations

import pytest

from .driving import executable


def test_a_named_chromium_is_used_and_a_missing_one_said(monkeypatch, tmp_path):
    named = tmp_path / "mine"
    monkeypatch.setenv("AUXCONN_CHROMIUM", str(named))
    with pytest.raises(FileNotFoundError, match="AUXCONN_CHROMIUM"):
        executable()
    named.touch()
    assert executable() == str(named)
