from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.daemons.nsqd.session import authorization
from nsq.daemons.nsqd.session.authorization import (
    MAX_STEPS,
    AuthError,
    Credentials,
    Grant,
    KnownPatterns,
    parse_grant,
)
from tests.fakes.session import drained

RULE = {"topic": "^allowed", "channels": ["^ok"], "permissions": ["subscribe", "publish"]}


def read(body: bytes, now: float) -> Grant:
    return drained(parse_grant(body, now))


def allows(granted: Grant, topic: str, channel: str) -> bool:
    return drained(granted.decide(topic, channel))


def grant(*rules: dict[str, Any], ttl: Any = 60, **more: Any) -> Grant:
    return read(json.dumps({"ttl": ttl, "authorizations": rules, **more}).encode(), now=1000.0)


def test_a_reply_of_an_auth_server_becomes_a_grant() -> None:
    answer = grant(RULE, ttl=5, identity="worker", identity_url="http://id.example")
    assert (answer.identity, answer.identity_url, answer.expires) == ("worker", "http://id.example", 1005.0)
    assert len(answer.rules) == 1


def test_a_reply_of_an_auth_server_may_leave_fields_out() -> None:
    assert read(b'{"ttl": 1}', 0.0) == Grant((), 1.0)
    assert read(b'{"ttl": 1, "authorizations": null, "identity": null}', 0.0) == Grant((), 1.0)
    rule = b'{"Topic": ".*", "CHANNELS": [".*"], "Permissions": ["publish"]}'
    assert len(read(b'{"TTL": 1, "Authorizations": [%b]}' % rule, 0.0).rules) == 1


ALL = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}
MIDDLE = {**ALL, "topic": "b", "channels": ["y|^$"]}
PUBLISH_A = {**ALL, "topic": "^a$", "permissions": ["publish"]}
SUBSCRIBE_B = {**ALL, "topic": "^b$", "permissions": ["subscribe"]}


@pytest.mark.parametrize(
    ("rules", "allowed", "forbidden"),
    [
        # Publishing is asked for with an empty channel, which "^ok" does not match.
        ([RULE], ["allowed1 ok1"], ["allowed1 no", "other ok1", "allowed1 "]),
        ([MIDDLE], ["abc xyz", "abc "], ["abc xz"]),
        ([PUBLISH_A, SUBSCRIBE_B], ["a ", "b c"], ["a c", "b "]),
        ([{"topic": ".*", "permissions": ["publish"]}], [], ["t "]),
        ([{"topic": ".*", "channels": [".*"]}], [], ["t ", "t c"]),
    ],
    ids=[
        "topic and channel",
        "patterns match anywhere",
        "one rule allows all of it",
        "no channels",
        "no permissions",
    ],
)
def test_a_rule_allows_a_topic_a_channel_and_a_permission(
    rules: list[dict[str, Any]], allowed: list[str], forbidden: list[str]
) -> None:
    answer = grant(*rules)
    for asked in allowed + forbidden:
        topic, channel = asked.split(" ")
        assert allows(answer, topic, channel) is (asked in allowed), asked


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"nope", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "ttl is None"),
        (b'{"ttl": 0}', "ttl is 0"),
        (b'{"ttl": -5}', "ttl is -5"),
        (b'{"ttl": true}', "ttl is True"),
        (b'{"ttl": 1.5}', "ttl is 1.5"),
        (b'{"ttl": "60"}', "ttl is '60'"),
        (b'{"ttl": 1' + b"0" * 400 + b"}", "ttl is 1000"),
        (b'{"ttl": 1, "authorizations": {}}', "authorizations is {}, not a list"),
        (b'{"ttl": 1, "authorizations": [7]}', "an authorization is 7"),
        (b'{"ttl": 1, "authorizations": [{"permissions": ["read"]}]}', "unknown permission 'read'"),
        (b'{"ttl": 1, "authorizations": [{"permissions": "publish"}]}', "permissions is 'publish'"),
        (b'{"ttl": 1, "authorizations": [{"topic": "("}]}', "topic pattern"),
        (b'{"ttl": 1, "authorizations": [{"topic": 7}]}', "topic pattern 7 is not text"),
        (b'{"ttl": 1, "authorizations": [{"channels": [["a"]]}]}', "channel pattern"),
        (b'{"ttl": 1, "authorizations": [{"topic": "a{99999999999999999999}"}]}', "topic pattern"),
        (b'{"ttl": 1, "authorizations": [{"topic": "' + b"(" * 50_000 + b'"}]}', "topic pattern"),
    ],
)
def test_an_unusable_reply_of_an_auth_server_is_an_error(body: bytes, said: str) -> None:
    with pytest.raises(AuthError) as caught:
        read(body, 0.0)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
some = dict.fromkeys(("topic", "channels", "permissions"), json_values)
rules = st.fixed_dictionaries({}, optional=some) | json_values


@given(
    st.fixed_dictionaries(
        {"ttl": st.integers(1, 100) | json_values},
        optional={
            "authorizations": st.lists(rules, max_size=3) | json_values,
            "identity": json_values,
            "identity_url": json_values,
        },
    )
)
def test_any_json_gives_a_grant_or_an_auth_error(answer: dict[str, Any]) -> None:
    try:
        found = read(json.dumps(answer).encode(), 0.0)
    except AuthError:
        return
    assert found.expires > 0
    assert isinstance(found.identity, str)
    assert allows(found, "t", "c") in (True, False)


def test_credentials_never_show_the_secret() -> None:
    shown = repr(Credentials("swordfish", "10.0.0.7", True, "name"))
    assert "swordfish" not in shown
    assert "10.0.0.7" in shown


#: Short texts that become thousands of steps each.
LARGE = [f"({first}{{80}}){{12}}({second}{{80}}){{12}}" * 5 for first in "abcdefgh" for second in "abcdefgh"]


def test_patterns_that_are_kept_are_bounded() -> None:
    known = KnownPatterns()
    assert known.get("^a$") is known.get("^a$")
    steps = 0
    for source in LARGE * 2:
        steps += known.get(source).steps
        assert known.steps <= MAX_STEPS
        assert known.get(source).search("a" * 64) in (True, False)
    assert steps > MAX_STEPS


def test_an_answer_whose_patterns_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization, "MAX_STEPS", most := MAX_STEPS // 10)
    with pytest.raises(AuthError, match=f"more than {most} steps"):
        grant(*({"topic": source, "channels": LARGE, "permissions": ["publish"]} for source in LARGE))
    assert grant({"topic": LARGE[0], "channels": LARGE[:3]}).steps <= most
    with pytest.raises(AuthError, match=f"more than {most} steps"):
        grant(*[{}] * (most + 1))
