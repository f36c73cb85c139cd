"""The command line: open the dashboard on a lab or on engines elsewhere, and find faults.

Each command imports what it needs when it runs: `--help` must not wait for Panel, and
nothing here ever loads vLLM, which lives in the lab's process alone.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from auxconn.doctor import Finding
    from auxconn_dashboard.hub import Hub

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="See and steer vLLM's auxiliary-output (R3) connector.",
)

Port = Annotated[
    int, typer.Option(min=0, max=65535, help="Port of the page; 0 takes a free one.")
]
Show = Annotated[bool, typer.Option(help="Open a browser on the page.")]
Bind = Annotated[str, typer.Option(help="Where engines connect to.")]
KeyFile = Annotated[
    str, typer.Option(help="The collector's key file, from `auxconn keys new`.")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Listen beyond this machine without keys.")
]


@app.command()
def demo(
    port: Port = 5006,
    show: Show = True,
    connector: Annotated[
        str | None, typer.Option(help="Scheduler connector: auxconn or vllm.")
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(help="grpo, multi_turn, shared_prefix or scan."),
    ] = None,
    blocks: Annotated[
        int | None, typer.Option(help="KV blocks of the engine's pool.")
    ] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens per KV block.")] = None,
    capacity: Annotated[
        int | None, typer.Option(help="KV blocks whose R3 rows are retained.")
    ] = None,
    kv_tier: Annotated[
        int | None,
        typer.Option(help="KV blocks of the host tier behind the pool; 0 is none."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="lab: vLLM's scheduler with an invented model; vllm: a real `vllm serve` "
            "of a toy model on the CPU, under load."
        ),
    ] = "lab",
) -> None:
    """Open the dashboard on a lab: vLLM's real scheduler with an invented model."""
    _stop_if_blocked("watch", "lab")
    from auxconn.lab.demo import CONFIG, WORKLOAD
    from auxconn.lab.workload_specs import WorkloadSpec

    wanted = {
        "connector": connector,
        "num_blocks": blocks,
        "block_size": block_size,
        "capacity": capacity,
        "kv_tier_blocks": kv_tier,
    }
    given: dict[str, Any] = {
        name: value for name, value in wanted.items() if value is not None
    }
    if engine == "vllm":
        from auxconn.engine.command import demo_job

        try:
            job = demo_job(workload, **given)
        except ValueError as error:
            _fail(str(error))
        _serve(lambda hub: hub.engine(job), port, show)
        return
    if engine != "lab":
        _fail(f"--engine {engine}: it is one of lab, vllm")
    try:
        config = dataclasses.replace(CONFIG, **given)
        spec = WORKLOAD if workload in (None, WORKLOAD.name) else WorkloadSpec(workload)
    except ValueError as error:
        _fail(str(error))
    _serve(lambda hub: hub.demo(config, spec), port, show)


@app.command()
def serve(
    collector_bind: Bind = "tcp://127.0.0.1:5599",
    port: Port = 5006,
    show: Show = False,
    prometheus: Annotated[
        str,
        typer.Option(help="Show the history in this Prometheus, http://host:9090."),
    ] = "",
    key_file: KeyFile = "",
    insecure: Insecure = False,
    allow_control: Annotated[
        bool,
        typer.Option(
            "--allow-control",
            help="Let the page, and `auxconn ctl`, steer engines; else it only looks.",
        ),
    ] = False,
    control_bind: Annotated[
        str, typer.Option(help="Where `auxconn ctl` connects to.")
    ] = "tcp://127.0.0.1:5598",
) -> None:
    """Open the dashboard and wait for engines to connect to it."""

    def watch(hub: type[Hub]) -> Hub:
        from auxconn.listening import Listening

        made = hub.watch(
            Listening(collector_bind, key_file, insecure, allow_control, control_bind)
        )
        typer.echo(f"Engines connect to {made.address}")
        return made

    def look_back(_: type[Hub]) -> Hub:
        from auxconn_dashboard.history import HistoryHub

        return HistoryHub(prometheus)

    _serve(look_back if prometheus else watch, port, show)


@app.command()
def collect(
    bind: Bind = "tcp://127.0.0.1:5599",
    record: Annotated[
        Path | None, typer.Option(help="Folder to record all tables into.")
    ] = None,
    metrics: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of /metrics for Prometheus."),
    ] = None,
    key_file: KeyFile = "",
    insecure: Insecure = False,
    allow_control: Annotated[
        bool,
        typer.Option("--allow-control", help="Let `auxconn ctl` steer the engines."),
    ] = False,
    control_bind: Annotated[
        str, typer.Option(help="Where `auxconn ctl` connects to.")
    ] = "tcp://127.0.0.1:5598",
) -> None:
    """Take in the rows of a cluster, without a page; record them, serve their metrics."""
    from auxconn.collecting import collect as run
    from auxconn.errors import AuxConnError
    from auxconn.listening import Listening

    listening = Listening(bind, key_file, insecure, allow_control, control_bind)
    try:
        run(listening, typer.echo, record=record, metrics=metrics)
    except (AuxConnError, ValueError, OSError) as error:
        _fail(str(error))


@app.command()
def export(
    collector_bind: Bind = "tcp://127.0.0.1:5599",
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port of /metrics; 0 takes a free one."),
    ] = 9599,
    address: Annotated[
        str,
        typer.Option(help="Address of /metrics; 0.0.0.0 lets other machines read it."),
    ] = "127.0.0.1",
    key_file: KeyFile = "",
    insecure: Insecure = False,
) -> None:
    """Take in engines' rows and serve every metric to Prometheus, without a page."""
    from auxconn.errors import AuxConnError
    from auxconn.exporter.command import run
    from auxconn.listening import Listening

    try:
        run(Listening(collector_bind, key_file, insecure), address, port, typer.echo)
    except (AuxConnError, ValueError, OSError) as error:
        _fail(str(error))


@app.command()
def engine(
    load: Annotated[
        bool, typer.Option("--load", help="Send a workload to its HTTP API.")
    ] = False,
    workload: Annotated[
        str | None, typer.Option(help="grpo, multi_turn, shared_prefix or scan.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(help="Parameter of the workload, as prompts=12; may be repeated."),
    ] = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="End when the load is over; exit code 1 if a request failed."
        ),
    ] = False,
    answers: Annotated[
        str, typer.Option(help="File that gets a line of JSON for each answer.")
    ] = "",
    collector: Annotated[
        str, typer.Option(help="Collector that watches it, tcp://host:port.")
    ] = "",
    name: Annotated[str, typer.Option(help="Name of the engine there.")] = "vllm",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the API; 0 takes a free one.")
    ] = 0,
    connector: Annotated[
        str | None, typer.Option(help="Scheduler connector: auxconn or vllm.")
    ] = None,
    blocks: Annotated[
        int | None, typer.Option(help="KV blocks of the engine's pool.")
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens per KV block, a multiple of 32.")
    ] = None,
    kv_tier: Annotated[
        int | None,
        typer.Option(help="KV blocks of the host tier behind the pool; 0 is none."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show vLLM's own output too.")
    ] = False,
) -> None:
    """Start a real `vllm serve` of a toy model on this machine's CPU, with R3."""
    _stop_if_blocked("lab")
    from auxconn.engine.command import config_of, run, workload_of
    from auxconn.engine.job import Job

    # A closed terminal or a service manager ends it as Ctrl-C does: all of vLLM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        config = config_of(
            {
                "connector": connector,
                "num_blocks": blocks,
                "block_size": block_size,
                "kv_tier_blocks": kv_tier,
            }
        )
        spec = workload_of(workload, tuple(param or ())) if load else None
        job = Job(config, collector, name, port, spec, once, answers)
    except ValueError as error:
        _fail(str(error))
    raise typer.Exit(run(job, typer.echo, verbose=verbose))


@app.command()
def record(
    folder: Annotated[
        Path, typer.Argument(help="Folder to record into; made if it is not there.")
    ],
    collector_bind: Bind = "tcp://127.0.0.1:5599",
    flush: Annotated[
        float, typer.Option(help="Seconds that are lost at most, if it is killed.")
    ] = 5.0,
    key_file: KeyFile = "",
    insecure: Insecure = False,
) -> None:
    """Take in engines' rows and keep all tables in a folder, without a page."""
    from auxconn.errors import AuxConnError
    from auxconn.listening import Listening
    from auxconn.recording import command

    try:
        command.record(
            folder, Listening(collector_bind, key_file, insecure), flush, typer.echo
        )
    except (AuxConnError, ValueError, OSError) as error:
        _fail(str(error))


@app.command()
def replay(
    folder: Annotated[Path, typer.Argument(help="Folder that was recorded into.")],
    port: Port = 5006,
    show: Show = True,
    speed: Annotated[
        float, typer.Option(help="Seconds of the recording per second, to begin with.")
    ] = 1.0,
) -> None:
    """Open the dashboard on a recording: play, pause, go anywhere in it."""
    from auxconn.errors import AuxConnError
    from auxconn.recording import command

    try:
        recording = command.open_quietly(folder)
    except AuxConnError as error:
        _fail(str(error))
    typer.echo(repr(recording))
    _serve(lambda hub: hub.replay(recording, speed=speed), port, show)


@app.command()
def ctl(
    engine: Annotated[
        str, typer.Argument(help="Engine to steer; without one, say who is there.")
    ] = "",
    command: Annotated[str, typer.Argument(help="What it shall do.")] = "",
    arguments: Annotated[
        list[str] | None, typer.Argument(help="As name=value, e.g. blocks=1000.")
    ] = None,
    address: Annotated[
        str, typer.Option(help="Where the collector takes orders.")
    ] = "tcp://127.0.0.1:5598",
    rank: Annotated[
        int | None, typer.Option(help="Data-parallel rank; the lowest by default.")
    ] = None,
    key_file: Annotated[
        str, typer.Option(help="The operator's key file, from `auxconn keys new`.")
    ] = "",
) -> None:
    """Steer engines of a collector, as in: auxconn ctl vllm set_capacity blocks=1000."""
    from auxconn import ctl as steering
    from auxconn.errors import AuxConnError

    if engine and not command:
        _fail(f"say what {engine} shall do; `auxconn ctl` alone lists what each obeys")
    try:
        answer = steering.run(
            address, key_file, engine, command, rank, tuple(arguments or ())
        )
    except (AuxConnError, ValueError) as error:
        _fail(str(error))
    if not answer.ok:
        _fail(answer.text)
    typer.echo(answer.text if engine else steering.table(answer.engines))


keys_app = typer.Typer(
    no_args_is_help=True, help="Keys for sockets that other machines can reach."
)
app.add_typer(keys_app, name="keys")


@keys_app.command("new")
def keys_new(
    folder: Annotated[
        Path, typer.Argument(help="Folder for the files; made if need be.")
    ],
) -> None:
    """Make a key file for the collector, for its engines and for its operators."""
    from auxconn import keys

    try:
        for path in keys.new(folder):
            typer.echo(f"{path}")
    except (ValueError, OSError) as error:
        _fail(str(error))


@keys_app.callback()
def keys_() -> None:
    """Hold the commands of `auxconn keys`."""


@app.command()
def doctor(
    port: Port = 5006,
    only: Annotated[
        str | None,
        typer.Option(help="Look at one thing: watch, lab or tests."),
    ] = None,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Import vLLM's scheduler too; some seconds."),
    ] = False,
) -> None:
    """Say what is missing or does not fit, and what to do; exit code 1 if it blocks."""
    from auxconn import doctor as examiner

    scopes = examiner.SCOPES if only is None else (only,)
    if unknown := set(scopes) - set(examiner.SCOPES):
        _fail(f"--only {unknown.pop()}: it is one of {', '.join(examiner.SCOPES)}")
    found = examiner.examine(scopes)
    if "watch" in scopes:
        found.append(examiner.check_port(port))
    if deep and "lab" in scopes:
        found.append(examiner.try_engine())
    _tell(found)
    blocked = sum(finding.level == "blocks" for finding in found)
    if blocked:
        things = "thing blocks" if blocked == 1 else "things block"
        typer.echo(f"\n{blocked} {things}; see what to do above.")
        raise typer.Exit(1)
    typer.echo("\nAll well.")


@app.command()
def version() -> None:
    """Print the versions of auxconn and of the vLLM beside it."""
    from auxconn.doctor import vllm_code

    typer.echo(f"auxconn {importlib.metadata.version('auxconn')}")
    typer.echo(f"vLLM {vllm_code() or 'is not installed'}")


SIGNS = {
    "ok": ("ok    ", typer.colors.GREEN),
    "note": ("note  ", typer.colors.YELLOW),
    "blocks": ("BLOCKS", typer.colors.RED),
}
"""A word and a colour for each level: never a colour alone."""


def _tell(findings: list[Finding]) -> None:
    for finding in findings:
        word, colour = SIGNS[finding.level]
        typer.secho(word, fg=colour, nl=False)
        typer.echo(f"  {finding.what}")
        if finding.todo:
            typer.echo(f"        -> {finding.todo}")


def _fail(text: str) -> NoReturn:
    typer.secho(text, fg=typer.colors.RED, err=True)
    raise typer.Exit(1)


def _stop_if_blocked(*scopes: str) -> None:
    """End with the doctor's words where the page would only show that nothing comes."""
    from auxconn import doctor as examiner

    found = examiner.examine(scopes, tried=False)
    blocking = [finding for finding in found if finding.level == "blocks"]
    if blocking:
        _tell(blocking)
        raise typer.Exit(1)


def _serve(make: Callable[[type[Hub]], Hub], port: int, show: bool) -> None:
    """Serve the page of the hub that `make` makes, until the user or a signal ends it."""
    from auxconn_dashboard.hub import Hub
    from auxconn_dashboard.server import PortTakenError, check_port
    from auxconn_dashboard.server import serve as serve_page

    # A closed terminal or a service manager ends the page as Ctrl-C does: lab and all.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        check_port("127.0.0.1", port)
        with make(Hub) as hub:
            serve_page(hub, port, show)
    except PortTakenError as error:
        _fail(str(error))
    except (ValueError, OSError) as error:
        _fail(f"{type(error).__name__}: {error}")


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
