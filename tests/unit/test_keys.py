"""Keys: who has one gets in, who has none or another gets nothing in and nothing out."""

from __future__ import annotations

import stat

import pytest
import zmq

from auxconn import keys
from auxconn.channel import Channel
from auxconn.collector import Collector
from auxconn.keys import KeyFileError, load, new
from tests.unit import stream_made as made

SECONDS = 20.0


@pytest.fixture
def folder(tmp_path):
    new(tmp_path / "keys")
    return tmp_path / "keys"


def test_only_their_owner_can_read_the_files(tmp_path):
    paths = new(tmp_path / "a" / "b")
    assert [path.name for path in paths] == [
        "collector.key", "engine.key", "operator.key",
    ]  # fmt: skip
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    collector, engine, operator = map(load, paths, keys.ENDS)
    assert collector.others == {"engine": engine.public, "operator": operator.public}
    assert engine.others == operator.others == {"collector": collector.public}
    assert collector.secret not in repr(collector)
    for end in collector, engine, operator:
        assert zmq.curve_public(end.secret.encode()).decode() == end.public


def test_keys_that_are_there_are_kept(folder):
    before = [path.read_bytes() for path in sorted(folder.iterdir())]
    with pytest.raises(KeyFileError, match="is there already"):
        new(folder)
    assert [path.read_bytes() for path in sorted(folder.iterdir())] == before


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.unlink(), "No such file.*auxconn keys new"),
        (lambda path: path.chmod(0o644), r"can be read by others \(mode 0644\)"),
        (lambda path: path.write_text("{"), "is no key file of auxconn"),
        (
            lambda path: path.write_text(
                '{"end":"engine","public":"a","secret":"b","others":{}}'
            ),
            "not 40 characters of Z85",
        ),
        (
            lambda path: path.write_bytes((path.parent / "collector.key").read_bytes()),
            "is the key file of the collector; here engine.key is needed",
        ),
    ],
)
def test_a_file_that_will_not_do_is_refused_with_the_reason(folder, spoil, said):
    spoil(folder / "engine.key")
    with pytest.raises(KeyFileError, match=said):
        load(folder / "engine.key", "engine")


def test_with_the_key_rows_and_commands_pass(folder):
    with Collector(keys=load(folder / "collector.key", "collector")) as collector:
        channel = Channel(
            collector.address, "lab", keys=load(folder / "engine.key", "engine")
        )
        channel.hello({"pid": 1}, ("pause",))
        channel.emit("steps", made.steps(1))
        assert collector.store.wait("steps", 1, SECONDS)
        answer = collector.command("lab", "pause")
        (command,) = channel.poll_commands(timeout=SECONDS)
        channel.ack(command, True, "done")
        assert answer.result(SECONDS).text == "done"
        channel.close()
        assert collector.foreign == 0


@pytest.mark.parametrize("has", ["no key", "another key"])
def test_without_the_key_nothing_gets_in_and_nothing_out(folder, tmp_path, has, caplog):
    strange = None
    if has == "another key":
        new(tmp_path / "strange")
        ours = load(folder / "engine.key", "engine")
        theirs = load(tmp_path / "strange" / "engine.key", "engine")
        # The collector's public key is no secret; the engine's own is not known to it.
        strange = keys.Keys("engine", theirs.public, theirs.secret, ours.others)
    with Collector(keys=load(folder / "collector.key", "collector")) as collector:
        refused = Channel(collector.address, "stranger", keys=strange)
        refused.emit("steps", made.steps(1))
        # One with the key goes through meanwhile, again and again.
        welcome = load(folder / "engine.key", "engine")
        for number in range(3):
            channel = Channel(collector.address, "lab", keys=welcome)
            channel.emit("steps", made.steps(number))
            assert collector.store.wait("steps", number + 1, SECONDS)
            channel.close()
        assert not refused.wait_connected(0.2)
        assert {source.engine for source in collector.sources()} == {"lab"}
        assert collector.store.steps()["engine"].unique().tolist() == ["lab"]
        if has == "another key":
            assert collector.foreign > 0
        refused.close(timeout=0)
    # Said once, however often it tried.
    assert len(caplog.messages) == 1
    assert ("wants a key" if has == "no key" else "does not know") in caplog.text


def test_an_engine_speaks_to_no_collector_but_its_own(folder, tmp_path):
    new(tmp_path / "other")
    with Collector(keys=load(tmp_path / "other" / "collector.key", "collector")) as one:
        channel = Channel(
            one.address, "lab", keys=load(folder / "engine.key", "engine")
        )
        channel.emit("steps", made.steps(1))
        assert not channel.wait_connected(0.5)
        assert one.sources() == []
        channel.close(timeout=0)


@pytest.mark.parametrize("bind", ["tcp://*:*", "tcp://0.0.0.0:*", "tcp://[::]:*"])
def test_beyond_the_machine_it_takes_keys_or_a_word(folder, bind):
    with pytest.raises(ValueError, match=r"from other machines.*auxconn keys new"):
        Collector(bind)
    if bind == "tcp://[::]:*":
        return  # not every machine has IPv6
    with Collector(bind, insecure=True):
        pass
    with Collector(bind, keys=load(folder / "collector.key", "collector")):
        pass


@pytest.mark.parametrize(
    "bind", ["tcp://127.0.0.1:*", "tcp://localhost:*", "tcp://127.0.0.9:*"]
)
def test_on_the_machine_alone_it_takes_none(bind):
    with Collector(bind):
        pass
