from __future__ import annotations

import pickle
from collections.abc import Iterator

from nsq import errors
from nsq.consumer.decisions import Requeue
from nsq.errors import ApiRefused, NsqError, ServerError, server_error


def classes(root: type[NsqError]) -> Iterator[type[NsqError]]:
    yield root
    for each in root.__subclasses__():
        if each.__module__ == errors.__name__:
            yield from classes(each)


def test_every_error_can_be_pickled_with_its_attributes() -> None:
    """A worker of multiprocessing whose error cannot be unpickled leaves its parent waiting."""
    made: list[Exception] = [kind("what was wrong") for kind in classes(NsqError)]
    made += [ApiRefused("refused", 404, "TOPIC_NOT_FOUND"), server_error(b"E_BAD_TOPIC no such name")]
    made += [server_error(b"E_OF_ANOTHER_KIND"), Requeue(2.5, backoff=False), Requeue()]
    for error in made:
        back = pickle.loads(pickle.dumps(error))
        assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))


def test_each_code_has_a_class_of_its_own() -> None:
    for kind in ServerError.__subclasses__():
        error = server_error(f"{kind.code} and why".encode())
        assert (type(error), error.code, error.text) == (kind, kind.code, f"{kind.code} and why")
    assert type(server_error(b"E_WHAT")) is ServerError
    assert server_error(b"E_WHAT else").code == "E_WHAT"
