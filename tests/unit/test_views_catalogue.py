"""What the catalogue says of a figure is what the page counts.

Each formula is computed as it is written, from pandas frames of the same rows.
"""

import re

import numpy as np
import pytest

from auxconn.catalogue import METRICS
from auxconn.frames import FrameStore
from auxconn.records import TABLES
from auxconn_dashboard.derive import REFUSALS
from auxconn_dashboard.hub import Hub
from auxconn_dashboard.session import PLOTS
from auxconn_dashboard.snapshot import ROWS, Window
from auxconn_dashboard.views.indicators import cards
from bench.feed import Feed

START = 1_700_000_000.0
WHERE = re.compile(r"(\w+)\.(\w+) where \w+\.(\w+) = (\w+)")
COLUMN = re.compile(r"\b(" + "|".join(TABLES) + r")\.([a-z_]+)")


def largest(*values):
    return np.maximum(*values) if len(values) == 2 else values[0].max()


@pytest.fixture(scope="module")
def page():
    """Frames of an engine, and a snapshot that shows all of them."""
    store = FrameStore(50_000)
    feed = Feed(store, start=START, capacity=1500)
    feed.run(1000)
    return store, Hub(store).snapshot("lab", Window(60))


def computed(name, store, seconds=1.0):
    """A metric's formula, done with pandas."""
    formula = METRICS[name].formula
    formula = WHERE.sub(r"frames['\1'].query('\3 == \"\4\"').\2", formula)
    formula = COLUMN.sub(r"frames['\1']['\2']", formula)
    frames = {table: store.frame(table) for table in TABLES}
    names = {
        "frames": frames, "s": seconds, "sum": np.sum, "count": len, "mean": np.mean,
        "last": lambda column: column.iloc[-1], "max": largest, "min": np.minimum,
    }  # fmt: skip
    return float(eval(formula, {"__builtins__": {}}, names))


def total(snapshot, table, *names):
    return sum(snapshot.total(table, name) for name in names)


@pytest.mark.parametrize(
    ("metric", "table", "names"),
    [
        ("query_tokens", "lookups", ["query_tokens"]),
        ("hit_tokens", "lookups", ["hit_tokens"]),
        ("local_tokens", "lookups", ["local_hit"]),
        ("external_tokens", "lookups", ["external_accepted"]),
        ("refused_tokens", "lookups", [f"refused_{reason}" for reason in REFUSALS]),
        ("rows_only_tokens", "lookups", ["retained_unused"]),
        ("missed_tokens", "lookups", ["missed"]),
        ("released_rate", "blocks", ["released"]),
        ("retained_rate", "blocks", ["retained"]),
        ("rows_rate", "rows", ["rows"]),
        ("rows_bytes_rate", "rows", ["bytes"]),
        ("steps_rate", "steps", [ROWS]),
    ],
)
def test_what_is_counted_is_what_is_said(page, metric, table, names):
    store, snapshot = page
    if names == [ROWS]:
        counted = snapshot.visible(table).rows.sum()
    else:
        counted = total(snapshot, table, *names)
    assert counted == computed(metric, store)
    assert metric == "rows_only_tokens" or counted > 0


def test_rows_only_and_missed_are_told_apart():
    """The feed has no rows without KV: here are some."""
    import msgspec

    store = FrameStore(100)
    feed = Feed(store, start=START)
    for retained in (0, 96, 400):
        row = msgspec.structs.replace(
            feed._lookup(), query_tokens=160, retained_hit=retained, local_hit=32,
            external_offered=32, external_accepted=0, external_refused=32,
            refusal="not_retained",
        )  # fmt: skip
        store.append("lookups", [row], "lab")
    snapshot = Hub(store).snapshot("lab", Window(60))
    assert total(snapshot, "lookups", "retained_unused") == 0 + 32 + 96
    assert total(snapshot, "lookups", "missed") == 96 + 64 + 0
    for metric, name in (
        ("rows_only_tokens", "retained_unused"),
        ("missed_tokens", "missed"),
    ):
        assert total(snapshot, "lookups", name) == computed(metric, store)


@pytest.mark.parametrize(
    ("metric", "table", "name"),
    [
        ("retained", "steps", "retained"),
        ("retained_on_gpu", "steps", "retained_on_gpu"),
        ("retained_off_gpu", "steps", "retained_off_gpu"),
        ("capacity", "steps", "capacity"),
        ("loading_blocks", "steps", "loading_blocks"),
        ("kv_in_use", "steps", "kv_in_use"),
        ("running", "steps", "running"),
        ("store_used", "store", "slots_used"),
        ("store_total", "store", "slots_total"),
        ("store_bytes", "store", "arena_bytes"),
    ],
)
def test_a_level_is_the_last_reading(page, metric, table, name):
    store, snapshot = page
    last = snapshot.tables[table].last[name]
    assert last[~np.isnan(last)][-1] == computed(metric, store)


def test_the_cards_show_what_their_words_say(page):
    store, snapshot = page
    shown = {card["key"]: card for card in cards(snapshot)}
    ratio = computed("hit_ratio", store)
    assert float(shown["hits"]["value"]) == pytest.approx(100 * ratio, abs=0.06)
    released = computed("released_rate", store)
    assert shown["released"]["sub"] == f"{released:,.0f} in all"
    assert shown["retained"]["value"] == f"{computed('retained', store):,.0f}"


def test_every_metric_of_a_plot_is_in_the_catalogue_under_the_words_of_its_bands():
    for kind in PLOTS:
        assert set(kind.metrics) <= set(METRICS)
    (hits,) = [kind for kind in PLOTS if kind.key == "hits"]
    titles = [METRICS[name].title.lower() for name in hits.metrics]
    bands = [band.label for band in hits.bands]
    assert titles == [
        "local",
        "external accepted",
        "external refused",
        "rows only",
        "miss",
    ]
    assert bands[-2:] == titles[-2:]
