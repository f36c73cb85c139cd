"""A progress bar for runs that somebody waits for."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, int], None]


@contextmanager
def progress_bar(
    total: int | None, requests: bool, shown: bool | None
) -> Iterator[Advance]:
    """Yield a function to call with (requests, steps) of each step.

    Parameters
    ----------
    total
        How many there will be; None when that isn't known.
    requests
        Count requests; else steps.
    shown
        None shows the bar to a terminal or a notebook, once a second has passed.
    """
    if shown is False or (shown is None and not _watched()):
        yield lambda requests, steps: None
        return
    try:
        with warnings.catch_warnings():
            # Without ipywidgets a notebook gets the bar of a terminal: that will do.
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm
    except ImportError:
        yield lambda requests, steps: None
        return
    with tqdm(
        total=total,
        unit="requests" if requests else "steps",
        delay=0 if shown else 1,
        leave=bool(shown),
        mininterval=0.2,
    ) as bar:
        yield lambda ended, steps: bar.update(ended if requests else steps) and None


def _watched() -> bool:
    return "ipykernel" in sys.modules or bool(
        sys.stderr is not None and sys.stderr.isatty()
    )
