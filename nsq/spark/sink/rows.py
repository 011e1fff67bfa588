"""From Arrow to what is published: which columns, and bodies by topic, all of them checked first.

Imports pyarrow only when there is something to read, and no Spark.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nsq.config import Config
from nsq.errors import ConfigError, InvalidMessage
from nsq.wire.names import check_topic

if TYPE_CHECKING:
    import pyarrow as pa


class Rows(NamedTuple):
    """What goes to one topic. ``delays`` are seconds, one for each body; None when none is deferred."""

    topic: str
    bodies: list[bytes]
    delays: list[float] | None


class Reader:
    """``topic`` is that of all rows, or empty when each row has its own."""

    def __init__(self, columns: Columns, topic: str, config: Config) -> None:
        self._columns = columns
        self._topic = topic
        self._max_msg_size = config.max_msg_size
        self._max_defer_ms = config.max_defer * 1000

    def read(self, batch: pa.RecordBatch) -> Iterator[Rows]:
        """Raises InvalidMessage or InvalidName for the first row that nsqd would refuse, before it yields."""
        if not batch.num_rows:
            return
        columns = self._columns
        bodies = _binary(batch.column(columns.body))
        topics = None if columns.topic is None else batch.column(columns.topic)
        delays = None if columns.defer is None else self._delays(batch.column(columns.defer))
        self._check_sizes(bodies, topics)
        if topics is None:
            yield Rows(self._topic, _values(bodies), delays)
        else:
            yield from _by_topic(topics, _values(bodies), delays)

    def _check_sizes(self, bodies: pa.Array, topics: pa.Array | None) -> None:
        import pyarrow.compute as pc

        sizes = pc.binary_length(bodies)
        extremes = pc.min_max(sizes)
        fits = (extremes["min"].as_py() or 0) > 0 and extremes["max"].as_py() <= self._max_msg_size
        if fits and not bodies.null_count:
            return
        for place, size in enumerate(sizes.to_pylist()):
            if size is None or not 0 < size <= self._max_msg_size:
                topic = self._topic if topics is None else topics[place].as_py()
                raise InvalidMessage(f"a row for topic {topic!r} has {self._fault(size)}")

    def _fault(self, size: int | None) -> str:
        if not size:
            what = "a body that is null" if size is None else "an empty body"
            return f"{what}, must have at least one byte: leave such rows out"
        return (
            f"a body of {size} bytes, must have at most {self._max_msg_size} "
            "(maxMsgSize, to be nsqd's --max-msg-size)"
        )

    def _delays(self, column: Any) -> list[float] | None:
        """In seconds; None when all are null or 0."""
        import pyarrow.compute as pc

        extremes = pc.min_max(column)
        least, most = extremes["min"].as_py() or 0, extremes["max"].as_py() or 0
        if least < 0 or most > self._max_defer_ms:
            raise InvalidMessage(
                f"a row has {least if least < 0 else most} in column deferMs, must be 0 to "
                f"{self._max_defer_ms:.0f} (maxDefer, to be nsqd's --max-req-timeout)"
            )
        return [(value or 0) / 1000 for value in column.to_pylist()] if most else None


def _binary(column: Any) -> pa.Array:
    """As binary with 64-bit offsets, whatever Spark is set to send; of a short one nothing is copied."""
    import pyarrow as pa

    return column.cast(pa.large_binary())


def _values(array: pa.Array) -> list[bytes]:
    """What ``to_pylist`` gives when nothing is null, in a fraction of its time."""
    _, offsets, data = array.buffers()
    first = array.offset
    ends = memoryview(offsets).cast("q")[first : first + len(array) + 1].tolist()
    start = ends[0]
    content = memoryview(data)[start : ends[-1]].tobytes()
    return [content[begin - start : end - start] for begin, end in itertools.pairwise(ends)]


def _by_topic(topics: Any, bodies: list[bytes], delays: list[float] | None) -> Iterator[Rows]:
    if topics.null_count:
        raise InvalidMessage("a row has null in column topic: leave such rows out, or give the option topic")
    encoded = topics.dictionary_encode()
    found = [check_topic(name) for name in encoded.dictionary.to_pylist()]
    places: list[list[int]] = [[] for _ in found]
    for place, index in enumerate(encoded.indices.to_pylist()):
        places[index].append(place)
    for topic, own in zip(found, places, strict=True):
        held_back = None if delays is None else [delays[place] for place in own]
        yield Rows(topic, [bodies[place] for place in own], held_back)


# Which columns are published


_TEXTS = ("string", "char", "varchar")
_BODIES = ("binary", *_TEXTS)
_WHOLES = ("byte", "short", "integer", "long")
_DEFER = "deferMs"


class Columns(NamedTuple):
    """Their places; None for one that is not there, or not needed."""

    body: int
    topic: int | None
    defer: int | None

    @classmethod
    def of(cls, fields: Sequence[tuple[str, str]], topic: str) -> Columns:
        """``fields`` are the names and types, as Spark calls them; ``topic`` is the option, or empty.

        Columns by other names are left alone: rows as the source makes them can be published as they are.
        """
        body = _place(fields, "body", _BODIES, "binary or string; for example to_json(struct(*)) AS body")
        if body is None:
            raise ConfigError(f"there is no column body, which is what is published{_among(fields)}")
        if topic:
            place = None
        else:
            place = _place(fields, "topic", _TEXTS, "string")
            if place is None:
                raise ConfigError(
                    "there is no column topic and no option topic: .option('topic', …), or a column of that "
                    f"name{_among(fields)}"
                )
        return cls(body, place, _place(fields, _DEFER, _WHOLES, "a whole number of milliseconds"))


def _place(fields: Sequence[tuple[str, str]], name: str, types: tuple[str, ...], wanted: str) -> int | None:
    found = [place for place, (given, _) in enumerate(fields) if _plain(given) == _plain(name)]
    if len(found) > 1:
        raise ConfigError(f"there are {len(found)} columns {name}, must be one")
    if not found:
        close = difflib.get_close_matches(
            _plain(name), [_plain(given) for given, _ in fields], 1, cutoff=0.75
        )
        for given, _ in fields:
            # A delay that is left alone would not be noticed for long.
            if name == _DEFER and [_plain(given)] == close:
                raise ConfigError(f"column {given} is not known; did you mean {_DEFER}?")
        return None
    given, kind = fields[found[0]]
    if kind not in types:
        raise ConfigError(f"column {given} is of type {kind}, must be {wanted}")
    return found[0]


def _plain(name: str) -> str:
    """As Spark compares them, and deferMs is defer_ms too."""
    return name.replace("_", "").lower()


def _among(fields: Sequence[tuple[str, str]]) -> str:
    return f" (there are: {', '.join(name for name, _ in fields)})" if fields else ""
