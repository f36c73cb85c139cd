from __future__ import annotations

import pytest

from auxconn.address import check_bind, check_connect, check_engine


@pytest.mark.parametrize(
    "address",
    [
        "tcp://127.0.0.1:5599",
        "tcp://localhost:1",
        "tcp://gpu-box.example.org:65535",
        "tcp://[::1]:5599",
        "ipc:///tmp/auxconn.sock",
    ],
)
def test_addresses_to_connect_to(address):
    assert check_connect(address) == address
    assert check_bind(address) == address


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:*", "tcp://*:5599", "tcp://*:*"])
def test_addresses_that_only_a_collector_can_use(address):
    assert check_bind(address) == address
    with pytest.raises(ValueError, match=r"collector|Collector"):
        check_connect(address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost:5599",
        "http://localhost:5599",
        "tcp://localhost",
        "tcp://:5599",
        "tcp://localhost:",
        "tcp://localhost:port",
        "tcp://localhost:65536",
        "tcp://localhost:-1",
        "tcp://local host:1",
        "tcp://localhost:1/path",
        "tcp://localhost:1\n",
        "tcp://-x:1",
        "tcp://::1:5599",
        "ipc://",
        "ipc:///" + "x" * 200,
        "inproc://x",
        None,
        5599,
    ],
)
def test_what_is_no_address_is_refused_with_its_text_and_an_example(address):
    for check in (check_bind, check_connect):
        with pytest.raises(ValueError, match="address") as refusal:
            check(address)
        assert repr(address) in str(refusal.value)
        assert "tcp://127.0.0.1:5599" in str(refusal.value)


def test_names_of_sources():
    check_engine("vLLM on box 3 · Qwen3", 0, "engine")
    for wrong in ("", "  ", "a\nb", "x" * 129, None, 3):
        with pytest.raises(ValueError, match="engine="):
            check_engine(wrong, 0, "engine")
    for wrong in (-1, 2**31, 1.0, True, None):
        with pytest.raises(ValueError, match="rank="):
            check_engine("lab", wrong, "engine")
    with pytest.raises(ValueError, match="role='driver'"):
        check_engine("lab", 0, "driver")
