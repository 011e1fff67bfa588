"""The recordings of the partitioned NSQ, of both recorders, in the form of the first.

The first wrote a file for each conversation, into ``partitioned``, and the HTTP exchanges into
``http_lookupd.json``. The second wrote ``partitioned_tcp.json`` and ``partitioned_http.json``, with names in
the place of addresses: they get the ports of the first cluster here.
"""

from __future__ import annotations

import functools
import json
import re
import struct
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_FOLDER = _HERE / "partitioned"

#: The ports of the first cluster by kind; the number of the node is added.
PORTS = {"nsqd:tcp": 24200, "nsqd:http": 24210, "lookup:http": 24170}
#: Which nsqd of the second cluster was meant, by what it is to partition 0 of rec_plain.
_ROLES = {"leader": 1, "replica": 2, "outside": 3}


@functools.cache
def conversations() -> dict[str, Any]:
    """Each conversation by its name."""
    found = {path.stem: load(path.stem) for path in sorted(_FOLDER.glob("[0-9]*.json"))}
    rows = json.loads((_HERE / "partitioned_tcp.json").read_text("utf-8"))
    return found | {row["name"]: _conversation(row) for row in rows}


@functools.cache
def exchanges() -> dict[str, Any]:
    """Each HTTP exchange of the second recorder by its name."""
    rows = json.loads((_HERE / "partitioned_http.json").read_text("utf-8"))
    return {f"{number} {row['method']} {row['path']}": _exchange(row) for number, row in enumerate(rows)}


@functools.cache
def load(name: str) -> Any:
    """A file of the first recorder."""
    return json.loads((_FOLDER / f"{name}.json").read_text("utf-8"))


def _conversation(row: dict[str, Any]) -> dict[str, Any]:
    steps = [{"dir": "C->S", "hex": b"  V2".hex()}]
    for step in row["steps"]:
        steps.append({"dir": "C->S", "hex": step["send"].encode("latin-1").hex()})
        for frame in step["frames"] or ["none"]:
            notes = {"end": "server closed connection", "none": "(no frame within 1s)"}
            if isinstance(frame, str):
                steps.append({"dir": "io", "note": notes[frame]})
                continue
            # Its nsqds ran with --msg-timeout=10s.
            data = frame[1].replace('"msg_timeout":10000', '"msg_timeout":60000').encode("latin-1")
            steps.append({"dir": "S->C", "hex": (struct.pack(">ii", len(data) + 4, frame[0]) + data).hex()})
    sent = "".join(step["send"] for step in row["steps"])
    detailed = "SUB_ADVANCED" in sent or "SUB_ORDERED" in sent
    return {
        "server": f"127.0.0.1:{PORTS['nsqd:tcp'] + _node(row['to'])}",
        "decoder_hints": {"ext": '"extend_support": true' in sent, "detail12": detailed},
        "steps": [{"note": "", **step} for step in steps],
    }


def _exchange(row: dict[str, Any]) -> dict[str, Any]:
    to, kind = row["to"], "nsqd:http"
    if to.startswith("nsqlookupd"):
        kind, number = "lookup:http", 1 if "leads" in to else 2
    else:
        number = _node(to.split()[1])
    headers = {name.title(): value for name, value in row["headers"].items()}
    text = re.sub(r"<(\w+)(\d):(\w+)>", _port, row["answer"])
    return {
        "request": {
            "method": row["method"],
            "url": f"http://127.0.0.1:{PORTS[kind] + number}{row['path']}",
            "accept": "application/vnd.nsq; version=1.0" if row["accept"] else None,
            "body": None if row["body"] is None else row["body"].encode(),
        },
        "response": {
            "http_status": row["status"],
            "headers": headers,
            "body_text": text,
            "body_json": json.loads(text) if "json" in headers["Content-Type"] else None,
        },
    }


def _node(name: str) -> int:
    return _ROLES.get(name) or int(name.removeprefix("nsqd"))


def _port(found: re.Match[str]) -> str:
    return str(PORTS[f"{found[1]}:{found[3]}"] + int(found[2]))
