"""What every store of a log does. A test class inherits these tests, and has a fixture ``store``."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from nsq.errors import WalError
from nsq.spark.wal.objects import Conflict, Objects, create, refuse_unconditional, replace


class StoreContract:
    def test_an_object_is_written_once_and_replaced_while_it_has_its_tag(self, store: Objects) -> None:
        tag = store.put_new("a/1", b"one")
        with pytest.raises(Conflict, match="a/1"):
            store.put_new("a/1", b"two")
        new = store.put_match("a/1", b"two", tag)
        assert new != tag
        for name, old in (("a/1", tag), ("a/1", '"another"'), ("a/missing", tag)):
            with pytest.raises(Conflict, match=name):
                store.put_match(name, b"three", old)
        with pytest.raises(Conflict):
            store.put_new("a/1", b"three")
        assert store.get("a/1") == (b"two", new)
        assert store.get("a/missing") is None

    def test_objects_are_listed_by_name(self, store: Objects) -> None:
        for number in range(1, 6):
            store.put_new(f"a/{number}", b"x" * number)
        for name in ("a/sub/1", "a-b/1", "b"):
            store.put_new(name, b"")
        tag = store.put_match("a/5", b"longer", store.get("a/5").tag)  # type: ignore[union-attr]
        listed = store.list_after("a/", "a/3")
        assert [(entry.name, entry.size) for entry in listed] == [("a/4", 4), ("a/5", 6), ("a/sub/1", 0)]
        assert listed[1].tag == tag
        assert [entry.name for entry in store.list_after("a/", "", 2)] == ["a/1", "a/2"]
        every = [entry.name for entry in store.list_after("")]
        assert every == ["a-b/1", *(f"a/{number}" for number in range(1, 6)), "a/sub/1", "b"]
        assert store.list_after("nowhere/") == []

    def test_deleted_objects_are_gone_and_may_be_made_again(self, store: Objects) -> None:
        tags = {}
        for number in range(3):
            tag = store.put_new(f"a/{number}", b"x")
            tags[number] = store.put_match(f"a/{number}", b"y", tag)
        store.delete_many([f"a/{number}" for number in (0, 1, 7)])
        assert [entry.name for entry in store.list_after("a/")] == ["a/2"]
        assert store.get("a/0") is None
        with pytest.raises(Conflict):
            store.put_match("a/0", b"z", tags[0])
        store.put_new("a/0", b"again")
        assert store.get("a/0").data == b"again"  # type: ignore[union-attr]

    def test_a_put_whose_answer_was_lost_is_recognized(self, store: Objects) -> None:
        tag = store.put_new("a", b"ours")
        assert create(store, "a", b"ours") == tag
        with pytest.raises(Conflict):
            create(store, "a", b"another's")
        new = store.put_match("a", b"ours again", tag)
        assert replace(store, "a", b"ours again", tag) == new
        for name in ("a", "missing"):
            with pytest.raises(Conflict):
                replace(store, name, b"another's", tag)

    def test_conditions_are_heeded(self, store: Objects) -> None:
        refuse_unconditional(store)
        assert store.list_after("") == []

    def test_one_of_several_writers_wins(self, store: Objects) -> None:
        won: list[tuple[bytes, str]] = []

        def race(data: bytes, name: str, tag: str | None) -> None:
            with suppress(WalError):
                new = create(store, name, data) if tag is None else replace(store, name, data, tag)
                won.append((data, new))

        for number in range(5):
            tag: str | None = None
            for turn in range(3):
                won.clear()
                threads = [
                    threading.Thread(target=race, args=(b"%d %d" % (turn, me), f"r/{number}", tag))
                    for me in range(6)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                [(data, tag)] = won
                assert store.get(f"r/{number}") == (data, tag)

    def test_a_held_object_has_one_holder(self, store: Objects) -> None:
        lock = store.hold("a/1")
        if lock is None:  # the store has no locks
            assert store.is_held("a/1") is None
            return
        assert store.list_after("") == []  # it need not exist
        store.put_new("a/1", b"")
        assert store.is_held("a/1")
        with pytest.raises(Conflict, match="a/1"):
            store.hold("a/1")
        assert not store.is_held("a/2")
        lock.release()
        assert not store.is_held("a/1")
        again = store.hold("a/1")
        assert again is not None
        again.release()
