from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from nsq import errors
from nsq.consumer.handlers import Requeue
from nsq.errors import ApiRefused, NsqError, ServerError, server_error


def classes(root: type[NsqError]) -> Iterator[type[NsqError]]:
    yield root
    for each in root.__subclasses__():
        if each.__module__ == errors.__name__:
            yield from classes(each)


@pytest.mark.parametrize("kind", list(classes(NsqError)))
def test_all_pass_from_process_to_process(kind: type[NsqError]) -> None:
    """A worker of multiprocessing whose error cannot be unpickled leaves its parent waiting."""
    error = kind("what was wrong")
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), vars(back)) == (kind, "what was wrong", vars(error))


@pytest.mark.parametrize(
    "error",
    [
        ApiRefused("refused", 404, "TOPIC_NOT_FOUND"),
        server_error(b"E_BAD_TOPIC no such name"),
        server_error(b"E_OF_ANOTHER_KIND"),
        Requeue(2.5, backoff=False),
        Requeue(),
    ],
    ids=str,
)
def test_with_all_they_say(error: NsqError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))


def test_each_code_has_a_class_of_its_own() -> None:
    for kind in ServerError.__subclasses__():
        error = server_error(f"{kind.code} and why".encode())
        assert (type(error), error.code, error.text) == (kind, kind.code, f"{kind.code} and why")
    assert type(server_error(b"E_WHAT")) is ServerError
    assert server_error(b"E_WHAT else").code == "E_WHAT"
