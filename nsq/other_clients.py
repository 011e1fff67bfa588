"""The names that other NSQ clients use, and what they are called here: read only to explain an error.

Covers go-nsq, pynsq, gnsq, nsq-py, ansq and nsqjs. A name that means the same here is not listed.
"""

from __future__ import annotations

#: Attributes of another client's module.
NAMES = {
    # pynsq
    "Reader": "pynsq's Reader is nsq.Consumer here, with add_handler(fn) and run()",
    "LegacyReader": "pynsq's LegacyReader is nsq.Consumer here, with add_handler(fn) and run()",
    "Writer": "pynsq's Writer is nsq.Producer here, with publish(topic, body)",
    "run": "pynsq's run() is the run() of a consumer here: nsq.Consumer(...).add_handler(fn).run()",
    "Error": "pynsq's Error is nsq.NsqError here",
    "BackoffTimer": "backing off is set by the options backoff_strategy and max_backoff_duration here",
    "SyncConn": "nsq.Consumer and nsq.Producer make and keep the connections here",
    "AsyncConn": "nsq.Consumer and nsq.Producer make and keep the connections here",
    "pub": "pynsq's pub() is Producer.publish(topic, body) here; the bytes alone are nsq.wire.commands.pub",
    "mpub": "pynsq's mpub() is Producer.multi_publish(topic, bodies) here; "
    "the bytes alone are nsq.wire.commands.mpub",
    "finish": "pynsq's finish() is Message.finish() here; the bytes alone are nsq.wire.commands.fin",
    "requeue": "pynsq's requeue() is Message.requeue(delay) here; the bytes alone are nsq.wire.commands.req",
    "touch": "pynsq's touch() is Message.touch() here; the bytes alone are nsq.wire.commands.touch",
    "identify": "the commands of the protocol, as bytes, are in nsq.wire.commands here",
    "subscribe": "the commands of the protocol, as bytes, are in nsq.wire.commands here",
    "ready": "the commands of the protocol, as bytes, are in nsq.wire.commands here",
    "nop": "the commands of the protocol, as bytes, are in nsq.wire.commands here",
    "unpack_response": "the frames of the protocol are parsed in nsq.wire.frames here",
    "decode_message": "the frames of the protocol are parsed in nsq.wire.frames here",
    "FRAME_TYPE_RESPONSE": "the frames of the protocol are parsed in nsq.wire.frames here",
    "FRAME_TYPE_ERROR": "the frames of the protocol are parsed in nsq.wire.frames here",
    "FRAME_TYPE_MESSAGE": "the frames of the protocol are parsed in nsq.wire.frames here",
    "valid_topic_name": "names are checked by check_topic of nsq.wire.names here",
    "valid_channel_name": "names are checked by check_channel of nsq.wire.names here",
    # gnsq
    "NsqdTCPClient": "gnsq's NsqdTCPClient is nsq.Producer or nsq.Consumer here",
    "Nsqd": "gnsq's Nsqd is nsq.Producer here, its HTTP part nsq.http.nsqd.NsqdApi; "
    "an nsqd for tests is nsq.testing.Nsqd",
    "NsqdHTTPClient": "gnsq's NsqdHTTPClient is NsqdApi of nsq.http.nsqd here",
    "Lookupd": "gnsq's Lookupd is NsqlookupdApi of nsq.http.nsqlookupd here",
    "LookupdClient": "gnsq's LookupdClient is NsqlookupdApi of nsq.http.nsqlookupd here",
    "NSQException": "gnsq's NSQException is nsq.NsqError here",
    "NSQRequeueMessage": "gnsq's NSQRequeueMessage is nsq.Requeue here",
    "NSQNoConnections": "gnsq's NSQNoConnections is nsq.PublishFailed or nsq.ConnectionFailed here",
    # nsq-py, and what else a client may be called
    "Client": "a client is nsq.Consumer or nsq.Producer here",
    "NSQClient": "a client is nsq.Consumer or nsq.Producer here",
    "NSQReader": "a reader is nsq.Consumer here, with add_handler(fn) and run()",
    "NSQWriter": "a writer is nsq.Producer here, with publish(topic, body)",
    "Subscriber": "a subscriber is nsq.Consumer here, with add_handler(fn) and run()",
    "Publisher": "a publisher is nsq.Producer here, with publish(topic, body)",
    # ansq
    "create_reader": "ansq's create_reader() is nsq.Consumer here, with add_handler(fn) and run()",
    "create_writer": "ansq's create_writer() is nsq.Producer here, with publish(topic, body)",
    "open_connection": "nsq.Consumer and nsq.Producer make and keep the connections here",
    "ConnectionOptions": "ansq's ConnectionOptions are nsq.Config here, or keyword arguments",
    "ConnectionFeatures": "ansq's ConnectionFeatures are nsq.Config here, or keyword arguments",
    # go-nsq
    "NewConsumer": "go-nsq's NewConsumer is nsq.Consumer here",
    "NewProducer": "go-nsq's NewProducer is nsq.Producer here",
    "NewConfig": "go-nsq's NewConfig is nsq.Config here, or keyword arguments",
    "HandlerFunc": "a handler is any function of one message here: consumer.add_handler(fn)",
}

_HOOKS = "hooks= of a Consumer does that here: an instance of a subclass of nsq.ConsumerHooks"
_LOGGING = "the standard logging module does that here, with loggers below 'nsq'"
_CLIENT = "client_id is the name in nsqd's statistics here"
_NSQD = "it is called nsqd here, an argument of Consumer and Producer"
_NSQLOOKUPD = "it is called nsqlookupd here, an argument of Consumer and Producer"
_HANDLER = "it is called add_handler(fn) here, a method of Consumer"
_HOST_AND_PORT = 'nsqd="host:port" is both here, an argument of Consumer and Producer'
_CONTEXT = "it is called tls here, which takes True or an ssl.SSLContext"
_CONSUMER = "it is an argument of Consumer, not an option"
_PRODUCER = "it is an argument of Producer, not an option"
_BOTH = "it is an argument of Consumer and Producer, not an option"

#: Options of other clients that are options here under another name.
OPTIONS = {
    # go-nsq
    "local_addr": "it is called local_address here",
    "tls_v1": "it is called tls=True here",
    "tls_config": _CONTEXT,
    "tls_root_ca_file": "it is called tls_ca_file here",
    "tls_cert": "it is called tls_cert_file here",
    "tls_key": "it is called tls_key_file here",
    "tls_insecure_skip_verify": "it is called tls_verify=False here",
    "skip_lookupd_authorization": "it is called lookupd_authorization here, "
    "which is 'https', 'always' or 'never'",
    # pynsq
    "tls_options": _CONTEXT,
    "max_tries": "it is called max_attempts here",
    "requeue_delay": "it is called default_requeue_delay here",
    "lookupd_connect_timeout": "it is called lookupd_poll_timeout here",
    "lookupd_request_timeout": "it is called lookupd_poll_timeout here",
    "reconnect_interval": "it is called reconnect_initial here, and reconnect_max",
    "timeout": "it is called dial_timeout, read_timeout, write_timeout or publish_timeout here",
    # gnsq
    "low_ready_idle_timeout": "it is called low_rdy_idle_timeout here",
    # nsq-py
    "connect_timeout": "it is called dial_timeout here",
    "short_id": "it is called client_id here",
    "long_id": "it is called hostname here",
    # nsqjs
    "message_timeout": "it is called msg_timeout here",
    "idle_timeout": "it is called read_timeout here",
    "max_concurrency": "it is called max_in_flight here, and threads, an argument of Consumer",
    "concurrency": "it is called max_in_flight here, and threads, an argument of Consumer",
}

#: What other clients take as options and this one does not, and arguments of ours where options are expected.
ARGUMENTS = {
    "nsqd_tcp_addresses": _NSQD,
    "nsqd_addresses": _NSQD,
    "nsqds": _NSQD,
    "addresses": _NSQD,
    "address": _NSQD,
    "host": _HOST_AND_PORT,
    "port": _HOST_AND_PORT,
    "lookupd_http_addresses": _NSQLOOKUPD,
    "nsqlookupd_addresses": _NSQLOOKUPD,
    "nsqlookupds": _NSQLOOKUPD,
    "lookupd": _NSQLOOKUPD,
    "message_handler": _HANDLER,
    "handler": _HANDLER,
    "on_message": _HANDLER,
    "async": "message.disable_auto_response() does that here",
    "backoff_on_requeue": "nsq.Requeue(backoff=False), raised by a handler, does that here",
    "feature_negotiation": "it is always on here",
    "auto_reconnect": "it is always on here; reconnect_initial and reconnect_max are the pauses",
    "name": _CLIENT,
    "io_loop": "threads do the work here: there is no event loop",
    "loop": "threads do the work here: there is no event loop",
    "logger": _LOGGING,
    "debug": _LOGGING,
    "on_exception": _HOOKS,
    "on_close": _HOOKS,
    "on_heartbeat": "heartbeats are answered here without telling",
    "message_queue": "a handler that calls queue.put does that here",
    "connection_options": "options are keyword arguments here, or config=nsq.Config(...)",
    "features": "options are keyword arguments here, or config=nsq.Config(...)",
    # Ours
    "nsqd": _BOTH,
    "nsqlookupd": _BOTH,
    "transport": _BOTH,
    "config": _BOTH,
    "topic": "Consumer takes it as an argument, Producer with every publish",
    "channel": _CONSUMER,
    "threads": _CONSUMER,
    "give_up": _CONSUMER,
    "hooks": _CONSUMER,
    "rewrite_address": _CONSUMER,
    "accept_addresses": _CONSUMER,
    "on_acknowledged": _PRODUCER,
    "on_failed": _PRODUCER,
}


def _plain(name: str) -> str:
    """``lookupdPollInterval`` and ``lookupd-poll-interval`` are one name."""
    return name.replace("-", "").replace("_", "").lower()


_BY_PLAIN_NAME = {_plain(name): text for name, text in {**ARGUMENTS, **OPTIONS}.items()}
_PLAIN_OPTIONS = {_plain(name) for name in OPTIONS}


def name_here(name: str) -> str:
    """What this attribute of another client's module is here; empty when it is unknown."""
    return NAMES.get(name, "")


def option_here(name: str, *, arguments: bool = True) -> str:
    """What this option of another client is here; empty when it is unknown.

    Without ``arguments`` only those that are options here too are known.
    """
    plain = _plain(name)
    return _BY_PLAIN_NAME.get(plain, "") if arguments or plain in _PLAIN_OPTIONS else ""
