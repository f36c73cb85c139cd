"""The host tier's index and memory: nothing that is loading is overwritten, copies are true."""

from hypothesis import given
from hypothesis import strategies as st

from auxconn.engine.tier_index import TierIndex


def key(number):
    return bytes([number])


def test_the_oldest_goes_and_what_is_wanted_stays():
    index = TierIndex(2)
    assert [index.put(key(n)) for n in (1, 2)] == [0, 1]
    assert index.put(key(1)) is None  # it has a slot
    assert index.run([key(2), key(1), key(9)]) == 2
    assert index.held() == [key(2), key(1)]
    assert index.put(key(3)) == 1  # that of 2, which was wanted before 1
    assert index.held() == [key(1), key(3)]


def test_pinned_slots_are_not_reused_before_they_are_let_go_of():
    index = TierIndex(2)
    for n in (1, 2):
        index.put(key(n))
    assert index.pin("a", [key(1), key(2)]) == [0, 1]
    assert index.pin("b", [key(2)]) == [1]
    assert index.put(key(3)) is None
    index.unpin("a")
    assert index.put(key(3)) == 0
    index.clear()
    assert len(index) == 0
    assert index.put(key(4)) == 0
    assert index.put(key(5)) == 0  # 1 is still loading, so 4 makes room
    index.unpin("b")
    assert index.put(key(6)) == 1
    index.unpin("nobody")


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["put", "pin", "unpin", "clear"]),
        st.integers(0, 7),
        st.sampled_from(["a", "b"]),
    ),
    max_size=60,
)


@given(ACTS)
def test_no_slot_has_two_contents_and_none_is_lost(acts):
    index = TierIndex(3)
    content, loading = {}, {}
    for act, number, name in acts:
        if act == "put":
            slot = index.put(key(number))
            if slot is not None:
                assert slot not in {s for slots in loading.values() for s in slots}
                content[slot] = key(number)
        elif act == "pin" and key(number) in index.held():
            loading[name] = index.pin(name, [key(number)])
            assert [content[slot] for slot in loading[name]] == [key(number)]
        elif act == "unpin":
            index.unpin(name)
            loading.pop(name, None)
        elif act == "clear":
            index.clear()
        assert len(index) <= 3
    for name in ("a", "b"):
        index.unpin(name)
    index.clear()
    assert {index.put(key(n)) for n in range(3)} == {0, 1, 2}


def test_blocks_go_out_and_come_back_a_few_a_step():
    import torch

    from auxconn.engine.tier_memory import TierMemory

    # Two kernel blocks make one of the pool; the second layer has another order.
    first = torch.arange(8 * 2 * 3, dtype=torch.float32).reshape(8, 2, 3)
    second = torch.arange(2 * 4 * 3, dtype=torch.float32).reshape(2, 4, 3) + 100
    original = first.clone(), second.clone()
    memory = TierMemory(5, load_blocks=2)
    memory.take({"a": first, "b": second}, 4)
    memory.save([(1, 4), (3, 0), (2, 2)])
    first.zero_()
    second.zero_()
    memory.queue["x"] = [(0, 4), (1, 0), (2, 2)]  # elsewhere than they were
    memory.queue["y"] = [(3, 4)]
    assert memory.load() == set()
    assert memory.load() == {"x", "y"}
    assert memory.load() == set()
    for to, was in ((0, 1), (1, 3), (2, 2), (3, 1)):
        assert torch.equal(
            first[2 * to : 2 * to + 2], original[0][2 * was : 2 * was + 2]
        )
        assert torch.equal(second[:, to], original[1][:, was])
