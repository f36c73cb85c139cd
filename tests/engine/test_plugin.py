"""The plugin in a process of its own, on vLLM's real scheduler.

The worker's side needs a model runner; it is run by the tests of the real engine.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from auxconn.collector import Collector

pytestmark = pytest.mark.engine

ENGINE = """
import json, logging, sys
from auxconn.lab import environment
environment.load()
logging.basicConfig()
logging.getLogger("vllm.auxconn").setLevel("INFO")  # the lab keeps vLLM quiet
import vllm.plugins
vllm.plugins.load_general_plugins()
from bench.loop import Loop, groups
from auxconn.lab.config import LabConfig

config = LabConfig(num_blocks=600, connector="vllm", async_scheduling=sys.argv[1] == "async",
                   num_layers=1, top_k=1)
loop = Loop(config, groups(200, (4, 8), 2), 8)
steps = 0
while loop.finished < 20:
    loop.step()
    steps += 1
from auxconn import installing
for attachment in installing._attached.values():
    attachment.detach()
print(json.dumps({
    "steps": steps,
    "connector": type(loop.scheduler.aux_output_connector).__module__,
    "hooked": "auxconn" in type(loop.scheduler).__init__.__globals__["__name__"],
    "instance": loop.scheduler.vllm_config.instance_id,
}))
"""


def run(environment: dict[str, str], kind: str = "plain") -> tuple[dict, str]:
    done = subprocess.run(
        [sys.executable, "-c", ENGINE, kind],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]), done.stdout + done.stderr


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_scheduler_made_by_vllm_is_watched(kind):
    with Collector() as collector:
        told, log = run(
            {"AUXCONN_COLLECTOR": collector.address, "AUXCONN_CONNECTOR": "auxconn"},
            kind,
        )
        assert told["connector"] == "auxconn.connector"
        collector.store.wait("steps", told["steps"], 10)
        (source,) = collector.sources()
        steps = collector.store.steps()
    assert source.role == "scheduler"
    assert source.engine == f"{socket.gethostname()}-{told['instance'][-9:-3]}"
    assert source.facts["connector"] == "auxconn"
    assert source.commands == ("set_capacity",)
    assert steps["step"].tolist() == list(range(1, told["steps"] + 1))
    assert log.count("auxconn watches") == 1


@pytest.mark.timeout(120)
def test_unset_vllm_is_as_it_was():
    told, log = run({"AUXCONN_ENGINE": "unasked"})
    assert told["connector"] == "vllm.distributed.aux_output_connector.connector"
    assert not told["hooked"]
    assert "auxconn" not in log
