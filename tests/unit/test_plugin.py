"""The plugin: nothing at all unless it is asked for, and never an exception into vLLM."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest

from auxconn import installing, plugin
from auxconn.attach import Attachment


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """As in a process in which nothing was installed yet."""
    monkeypatch.setattr(installing, "_plan", None)
    monkeypatch.setattr(installing, "_attached", {})


def test_unset_it_imports_and_wraps_nothing():
    code = (
        "import sys\n"
        "from importlib.metadata import entry_points\n"
        "(found,) = [one for one in entry_points(group='vllm.general_plugins')\n"
        "            if one.name == 'auxconn']\n"
        "register = found.load()\n"
        "before = set(sys.modules)\n"
        "register()\n"
        "print(sorted(set(sys.modules) - before))\n"
        "print(sorted(one for one in sys.modules if one.startswith('auxconn')))\n"
        "print(any(one in sys.modules for one in ('numpy', 'zmq', 'wrapt', 'msgspec')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
        env={"AUXCONN_ENGINE": "named, and still nothing is asked for"},
    )
    assert done.stdout.splitlines() == [
        "[]",
        "['auxconn', 'auxconn.plugin']",
        "False",
    ]


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"AUXCONN_COLLECTOR": "localhost:5599"}, "AUXCONN_COLLECTOR: .*tcp://"),
        (
            {"AUXCONN_CONNECTOR": "ours"},
            "AUXCONN_CONNECTOR='ours' is no connector; it is one of vllm, auxconn",
        ),
        (
            {"AUXCONN_CONNECTOR": "vllm", "AUXCONN_KEY_FILE": "nowhere.key"},
            "AUXCONN_KEY_FILE: nowhere.key: No such file.*auxconn keys new",
        ),
        (
            {"AUXCONN_CONNECTOR": "vllm", "AUXCONN_ENGINE": "\n"},
            "AUXCONN_ENGINE: engine=",
        ),
    ],
)
def test_a_mistake_costs_one_line_in_the_log(environment, said, caplog):
    with caplog.at_level(logging.INFO, "vllm.auxconn"):
        installing.install(environment)
    (line,) = caplog.messages
    assert line.startswith("auxconn watches nothing: ")
    with pytest.raises(ValueError, match=said):
        installing.Plan(environment)


def test_an_engine_without_r3_costs_one_line_in_the_log(caplog):
    installing._plan = installing.Plan({"AUXCONN_COLLECTOR": "tcp://127.0.0.1:9"})
    with caplog.at_level(logging.INFO, "vllm.auxconn"):
        installing._on_scheduler(SimpleNamespace(aux_output_connector=None))
    (line,) = caplog.messages
    assert "--enable-return-routed-experts" in line
    assert installing._attached == {}


def test_a_scheduler_of_an_unknown_shape_costs_one_line_in_the_log(caplog, monkeypatch):
    monkeypatch.setattr(installing, "_version_note", lambda: " (vLLM 9)")
    installing._plan = installing.Plan({"AUXCONN_COLLECTOR": "tcp://127.0.0.1:9"})
    with caplog.at_level(logging.INFO, "vllm.auxconn"):
        installing._on_scheduler(SimpleNamespace(aux_output_connector=object()))
    (line,) = caplog.messages
    assert line.startswith("auxconn does not watch this scheduler (vLLM 9): ")


def test_a_module_without_the_names_costs_one_line_in_the_log(caplog):
    with caplog.at_level(logging.INFO, "vllm.auxconn"):
        installing._on_scheduler_module(SimpleNamespace())
        installing._on_runner_module(SimpleNamespace())
    scheduler, worker = caplog.messages
    assert scheduler.startswith("auxconn cannot watch this vLLM's scheduler: ")
    assert worker.startswith("auxconn cannot watch this vLLM's worker: ")


class Runner:
    """A model runner's module; what it makes is watched by a double of `attach`."""

    def __init__(self, store: object) -> None:
        self.made = SimpleNamespace(_store=store)
        self.get_aux_output_connector = self._make

    def _make(self, model, vllm_config, kv_cache_config):
        return self.made


CONFIG = SimpleNamespace(
    instance_id="abcde", parallel_config=SimpleNamespace(data_parallel_rank=3)
)


@pytest.fixture
def attached(monkeypatch):
    calls = []

    def attach(**what):
        calls.append(what)
        return Attachment(None, None, None, None, {})

    monkeypatch.setattr(sys.modules["auxconn.attach"], "attach", attach)
    monkeypatch.setattr(installing.socket, "gethostname", lambda: "gpu1")
    installing._plan = installing.Plan({"AUXCONN_COLLECTOR": "tcp://127.0.0.1:9"})
    return calls


def test_a_worker_is_watched_when_it_is_made_and_under_its_engines_name(attached):
    runner = Runner(store=object())
    installing._on_runner_module(runner)
    made = runner.get_aux_output_connector("model", CONFIG, kv_cache_config=None)
    assert made is runner.made
    assert attached == [
        {
            "worker": made,
            "to": "tcp://127.0.0.1:9",
            "engine": "gpu1-abcde",
            "rank": 3,
            "key_file": None,
        }
    ]


def test_a_rank_without_rows_is_left_alone(attached):
    runner = Runner(store=None)
    installing._on_runner_module(runner)
    assert runner.get_aux_output_connector("model", CONFIG, None) is runner.made
    assert attached == []


def test_a_worker_made_anew_takes_the_place_of_the_one_before(attached):
    runner = Runner(store=object())
    installing._on_runner_module(runner)
    runner.get_aux_output_connector("model", CONFIG, None)
    first = installing._attached["worker", 3]
    runner.get_aux_output_connector("model", CONFIG, None)
    assert not first._attached
    assert list(installing._attached) == [("worker", 3)]


def test_it_may_be_registered_more_than_once(monkeypatch):
    hooks = []
    monkeypatch.setattr(
        "wrapt.register_post_import_hook", lambda hook, name: hooks.append(name)
    )
    monkeypatch.setenv(plugin.COLLECTOR, "tcp://127.0.0.1:9")
    plugin.register()
    plugin.register()
    assert hooks == [installing.SCHEDULER, installing.RUNNER]
