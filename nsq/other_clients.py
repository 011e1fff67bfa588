"""Names that other NSQ clients use, with ours for them. Used only to explain errors, and a warning when
another client of the same module name is installed.

Covers go-nsq, pynsq, gnsq, nsq-py, ansq, asyncnsq and nsqjs. Omits names that mean the same here.
"""

from __future__ import annotations


def _by_name(table: str) -> dict[str, str]:
    """Parse a table: each line has names, a colon, and the hint for all of them."""
    rows = (line.strip().partition(": ") for line in table.strip().splitlines())
    return {name: text for names, _, text in rows for name in names.split()}


#: Attributes of another client's module.
NAMES = _by_name("""
    Reader LegacyReader NSQReader Subscriber: it is nsq.Consumer here, with add_handler(fn) and run()
    create_reader NewConsumer: it is nsq.Consumer here, with add_handler(fn) and run()
    Writer NSQWriter Publisher create_writer NewProducer: it is nsq.Producer here, with publish(topic, body)
    run: a consumer has it here: nsq.Consumer(...).add_handler(fn).run()
    HandlerFunc: a handler is any function of one message here: consumer.add_handler(fn)
    Client NSQClient NsqdTCPClient SyncConn AsyncConn open_connection: use nsq.Consumer and nsq.Producer here
    TcpConnection create_connection: use nsq.Consumer and nsq.Producer here
    ConnectionOptions ConnectionFeatures NewConfig: it is nsq.Config here, or keyword arguments
    BackoffTimer: the options backoff_strategy and max_backoff_duration do that here
    Error NSQException: it is nsq.NsqError here
    NSQRequeueMessage: it is nsq.Requeue here
    NSQNoConnections: it is nsq.PublishFailed or nsq.ConnectionFailed here
    pub: it is Producer.publish(topic, body) here; the bytes alone are nsq.wire.commands.pub
    mpub: it is Producer.multi_publish(topic, bodies) here; the bytes alone are nsq.wire.commands.mpub
    finish: it is Message.finish() here; the bytes alone are nsq.wire.commands.fin
    requeue: it is Message.requeue(delay) here; the bytes alone are nsq.wire.commands.req
    touch: it is Message.touch() here; the bytes alone are nsq.wire.commands.touch
    identify subscribe ready nop: the commands of the protocol, as bytes, are in nsq.wire.commands here
    unpack_response decode_message: the frames of the protocol are parsed in nsq.wire.frames here
    FRAME_TYPE_RESPONSE FRAME_TYPE_ERROR FRAME_TYPE_MESSAGE: these are in nsq.wire.frames here
    valid_topic_name valid_channel_name: check_topic and check_channel of nsq.wire.names do that here
    Nsqd: it is nsq.Producer here, its HTTP part nsq.http.nsqd.NsqdApi; an nsqd for tests is nsq.testing.Nsqd
    NsqdHTTPClient NsqdHttpWriter: it is NsqdApi of nsq.http.nsqd here
    Lookupd LookupdClient NsqLookupd: it is NsqlookupdApi of nsq.http.nsqlookupd here
""")

#: Options of other clients that have another name here.
OPTIONS = _by_name("""
    local_addr: it is called local_address here
    tls_v1: it is called tls=True here
    tls_config tls_options: it is called tls here, which takes True or an ssl.SSLContext
    tls_root_ca_file: it is called tls_ca_file here
    tls_cert: it is called tls_cert_file here
    tls_key: it is called tls_key_file here
    tls_insecure_skip_verify: it is called tls_verify=False here
    skip_lookupd_authorization: it is called lookupd_authorization here, which is 'https', 'always' or 'never'
    max_tries: it is called max_attempts here
    requeue_delay: it is called default_requeue_delay here
    lookupd_connect_timeout lookupd_request_timeout: it is called lookupd_poll_timeout here
    reconnect_interval: it is called reconnect_initial here, and reconnect_max
    timeout: it is called dial_timeout, read_timeout, write_timeout or publish_timeout here
    low_ready_idle_timeout: it is called low_rdy_idle_timeout here
    connect_timeout: it is called dial_timeout here
    short_id: it is called client_id here
    long_id: it is called hostname here
    message_timeout: it is called msg_timeout here
    idle_timeout: it is called read_timeout here
    max_concurrency concurrency: it is called max_in_flight here, and threads, an argument of Consumer
""")

#: Options of other clients that are not options here, and our arguments where an option is expected.
ARGUMENTS = _by_name("""
    nsqd_tcp_addresses nsqd_addresses nsqds addresses address: it is nsqd= of Consumer and Producer here
    lookupd_http_addresses nsqlookupd_addresses: it is nsqlookupd= of Consumer and Producer here
    nsqlookupds lookupd: it is nsqlookupd= of Consumer and Producer here
    host port: nsqd="host:port" is both here, an argument of Consumer and Producer
    message_handler handler on_message: it is called add_handler(fn) here, a method of Consumer
    async auto_fin: message.disable_auto_response() does that here
    auto_requeue: what a handler raises requeues its message here
    backoff_on_requeue: nsq.Requeue(backoff=False), raised by a handler, does that here
    feature_negotiation: it is always on here
    auto_reconnect: it is always on here; reconnect_initial and reconnect_max are the pauses
    name: client_id is the name in nsqd's statistics here
    io_loop loop: threads do the work here: there is no event loop
    logger debug log_level: the standard logging module does that here, with loggers below 'nsq'
    on_exception on_close: hooks= of a Consumer does that here: an instance of a subclass of nsq.ConsumerHooks
    on_heartbeat: heartbeats are answered here without telling
    message_queue queue: a handler that calls queue.put does that here
    connection_options features: options are keyword arguments here, or config=nsq.Config(...)
    nsqd nsqlookupd transport config: it is an argument of Consumer and Producer here
    channel threads dead_letters dead_letter_reasons give_up hooks: it is an argument of Consumer here
    rewrite_address accept_addresses: it is an argument of Consumer here
    on_acknowledged on_failed on_refused: it is an argument of Producer here
    topic: Consumer takes it as an argument, Producer with every publish
""")


def _plain(name: str) -> str:
    """Normalize a name: ``lookupdPollInterval`` and ``lookupd-poll-interval`` become the same."""
    return name.replace("-", "").replace("_", "").lower()


def option_here(name: str, *, arguments: bool = True) -> str:
    """Return the hint for another client's option; empty when the option is unknown.

    Without ``arguments`` only options that are options here too are known.
    """
    known = {**ARGUMENTS, **OPTIONS} if arguments else OPTIONS
    return next((text for each, text in known.items() if _plain(each) == _plain(name)), "")


def warn_about_replaced_client() -> None:
    """Warn that pynsq or nsq-py is installed here, and that this package has replaced some of its files."""
    import warnings
    from importlib import metadata

    found = [each for name in ("pynsq", "nsq-py") for each in metadata.distributions(name=name)]
    names = " and ".join(dict.fromkeys(f"{each.name} {each.version}" for each in found)) or "another client"
    warnings.warn(
        f"{names} is installed in this environment too, and its module is also called nsq: this package has "
        "replaced some of its files, so it cannot work, and uninstalling it would delete files of this "
        "package. Use an environment for each, or uninstall it and run "
        "pip install --force-reinstall --no-deps nsq",
        RuntimeWarning,
        stacklevel=3,
    )
