"""The broker's URL and options."""

from __future__ import annotations

import ssl
from typing import Any

import kombu.serialization  # loads the entry point, as importing celery does
import pytest

import nsq
from nsq.contrib.celery.settings import BrokerSettings, settings_of


def settings(url: str | list[str], **options: Any) -> BrokerSettings:
    connection = kombu.Connection(url, **options)
    connection.transport  # noqa: B018 - kombu makes it now
    return settings_of(connection)


@pytest.mark.parametrize(
    ("url", "nsqds", "lookupds"),
    [
        ("nsq://", ["127.0.0.1:4150"], []),
        ("nsq://10.0.0.2", ["10.0.0.2:4150"], []),
        ("nsq://10.0.0.2:5150/", ["10.0.0.2:5150"], []),
        ("nsq://a:1,b", ["a:1", "b:4150"], []),
        ("nsq://[::1],[::2]:7", ["[::1]:4150", "[::2]:7"], []),
        ("nsq://a/?msg_timeout=2m", ["a:4150"], []),
        ("nsq://%2Frun%2Fa%2Cb.sock,b", ["/run/a,b.sock", "b:4150"], []),
        ("nsq://a;nsq://b:2", ["a:4150", "b:2"], []),
        ("nsq+lookupd://10.0.0.7,b:1", [], ["10.0.0.7:4161", "b:1"]),
    ],
)
def test_a_url_names_one_or_several_daemons(url: str, nsqds: list[str], lookupds: list[str]) -> None:
    found = settings(url)
    assert (list(found.nsqds), list(found.lookupds)) == (nsqds, lookupds)


def test_options_come_from_the_query_and_from_transport_options() -> None:
    found = settings(
        "nsq://a?msg_timeout=2m&max_deaths=3", transport_options={"publish_timeout": 3.0, "max_retries": 7}
    )
    assert (found.config.msg_timeout, found.config.publish_timeout, found.max_deaths) == (120.0, 3.0, 3)


@pytest.mark.parametrize(
    ("url", "options", "error"),
    [
        ("nsq://a?msg_timeuot=2m", {}, "there is no option 'msg_timeuot'; did you mean msg_timeout"),
        ("nsq://a?max_deaths=often", {}, "max_deaths is 'often'; it must be a whole number from 0 up"),
        ("nsq://a", {"transport_options": {"max_deaths": -1}}, "max_deaths is -1"),
        (
            "nsq://a",
            {"transport_options": {"transport": "memory"}},
            "transport is 'memory'; it must be an object",
        ),
        ("nsq://a:port", {}, "port 'port'"),
        ("nsq:///run/nsqd.sock", {}, "the broker's URL has a path"),
        ("nsq://s3cret@a/vhost?msg_timeout=2m", {}, "the broker's URL has a path"),
        ("nsq://a/s3cret@a", {}, "a / in a secret as %2F"),
        ("nsq://a", {"ssl": {"keyfle": "x"}}, "broker_use_ssl has ['keyfle']"),
    ],
)
def test_a_wrong_option_is_named(url: str, options: dict[str, Any], error: str) -> None:
    with pytest.raises(nsq.ConfigError) as caught:
        kombu.Connection(url, **options).connect()
    assert error in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["nsqs://a", "nsqs+lookupd://a"])
def test_nsqs_is_nsq_over_tls(url: str) -> None:
    assert settings(url).config.tls is True
    assert settings("nsq://a").config.tls is False


def test_broker_use_ssl_gives_the_files() -> None:
    files = {"ca_certs": "ca.pem", "certfile": "c.pem", "keyfile": "k.pem"}
    # As Celery's documentation has it.
    config = settings("nsq://a", ssl=files | {"cert_reqs": ssl.CERT_REQUIRED}).config
    assert config.tls_verify is True
    assert settings("nsq://a", ssl={"cert_reqs": ssl.CERT_NONE}).config.tls_verify is False
    assert (config.tls, config.tls_ca_file, config.tls_cert_file) == (True, "ca.pem", "c.pem")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nsq://s3cr%2Ft@a:1,b:2", "nsq://**@a:1,b:2"),
        ("nsq://:s3cr%2Ft@a", "nsq://**@a"),
        ("nsqs+lookupd://s3cr%2Ft@a?snappy=true", "nsqs+lookupd://**@a?snappy=true"),
        (["nsq://s3cr%2Ft@a", "nsq://s3cr%2Ft@b"], "nsq://**@a"),
    ],
)
def test_the_secret_of_a_url_authorizes_and_is_not_shown(url: str | list[str], shown: str) -> None:
    connection = kombu.Connection(url)
    assert connection.as_uri() == shown
    assert settings_of(connection).config.auth_secret == "s3cr/t"
    assert settings_of(connection.clone()).config.auth_secret == "s3cr/t"
    information = connection.info()
    assert information.pop("password") == "s3cr/t"
    assert "s3cr" not in repr(information)
