"""Every error this package raises, under one root.

    NsqError
    ├── UsageError (ValueError)   ConfigError, InvalidName, InvalidMessage
    ├── WireError                 FrameError (NotNsqd), LayerError
    ├── ConnectionFailed          DialFailed, HandshakeFailed, ConnectionLost, Unanswered
    ├── ServerError               one class per E_ code
    ├── PublishFailed             QueueFull
    ├── PublishUncertain
    ├── AlreadyResponded
    ├── Closed                    Forked
    ├── ApiError                  ApiRefused
    └── WalError                  WalOwned, WalForeign, SegmentLost

``retry`` tells whether the same call can succeed later, ``maybe_stored`` whether a publish that raised the
error may be stored nevertheless. This module imports nothing of the package.
"""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'nsq[{extra}]'"


class NsqError(Exception):
    """The root: ``except nsq.NsqError`` catches all errors of this package and no others."""

    retry = False
    maybe_stored = False


class UsageError(NsqError, ValueError):
    """The call was wrong: nothing was sent, and repeating the call unchanged cannot help."""


class ConfigError(UsageError):
    """An option is unknown, of the wrong type or out of range; the message names option, value and range."""


class InvalidName(UsageError):
    """A topic or channel name that no nsqd would accept."""


class InvalidMessage(UsageError):
    """A message that no nsqd would accept: empty, too large, not bytes, deferred for too long."""


class WireError(NsqError):
    """The bytes of a peer do not follow the protocol."""


class FrameError(WireError):
    """A frame of an impossible or unacceptable size."""


class NotNsqd(FrameError):
    """The peer is not an nsqd: the address or the port is wrong."""


class LayerError(WireError):
    """TLS, deflate or snappy data that cannot be decoded, or would expand too far."""


class ConnectionFailed(NsqError):
    """There is no connection to an nsqd, or it is lost."""

    retry = True


class DialFailed(ConnectionFailed):
    """The address cannot be reached: refused, unknown host, no answer within the dial timeout."""


class HandshakeFailed(ConnectionFailed):
    """An nsqd was reached, but TLS, IDENTIFY or AUTH failed with these options. Waiting does not help."""

    retry = False


class ConnectionLost(ConnectionFailed):
    """An established connection has ended."""


class Unanswered(ConnectionFailed):
    """The peer did not answer, or did not take our bytes, within the deadline."""


class ServerError(NsqError):
    """nsqd refused a command. ``code`` is its ``E_`` code, ``text`` its explanation."""

    code = ""
    fatal = True  # nsqd closes the connection after it

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.code = code or type(self).code
        if type(self) is ServerError:
            self.fatal = False  # an unknown code, of a server that may go on


class InvalidCommand(ServerError):
    """E_INVALID: a command that nsqd does not know, or does not accept in this state."""

    code = "E_INVALID"


class BadBody(ServerError):
    code = "E_BAD_BODY"


class BadTopic(ServerError):
    code = "E_BAD_TOPIC"


class BadChannel(ServerError):
    code = "E_BAD_CHANNEL"


class BadMessage(ServerError):
    """E_BAD_MESSAGE: usually a message larger than this nsqd accepts."""

    code = "E_BAD_MESSAGE"


class PubFailed(ServerError):
    """E_PUB_FAILED: nsqd could not store the message (it exits, or its disk is full)."""

    code = "E_PUB_FAILED"
    retry = True


class MpubFailed(ServerError):
    """E_MPUB_FAILED: nsqd could not store all messages; some of them may be stored, see ``maybe_stored``."""

    code = "E_MPUB_FAILED"
    retry = True
    maybe_stored = True


class DpubFailed(ServerError):
    code = "E_DPUB_FAILED"
    retry = True


class SubFailed(ServerError):
    """E_SUB_FAILED: the channel has the most consumers allowed, or nsqd drains and makes no channels."""

    code = "E_SUB_FAILED"
    retry = True


class IdentifyFailed(ServerError):
    code = "E_IDENTIFY_FAILED"


class AuthFirst(ServerError):
    """E_AUTH_FIRST: this nsqd requires AUTH, and no secret was given."""

    code = "E_AUTH_FIRST"


class AuthFailed(ServerError):
    """E_AUTH_FAILED: nsqd could not ask its auth server."""

    code = "E_AUTH_FAILED"
    retry = True


class AuthDisabled(ServerError):
    code = "E_AUTH_DISABLED"


class AuthServerError(ServerError):
    code = "E_AUTH_ERROR"
    retry = True


class Unauthorized(ServerError):
    """E_UNAUTHORIZED: the secret does not allow this."""

    code = "E_UNAUTHORIZED"


class FinFailed(ServerError):
    """E_FIN_FAILED, as the next two: the message had timed out, and nsqd delivers it to another consumer."""

    code = "E_FIN_FAILED"
    fatal = False


class ReqFailed(ServerError):
    code = "E_REQ_FAILED"
    fatal = False


class TouchFailed(ServerError):
    code = "E_TOUCH_FAILED"
    fatal = False


# Errors of partitioned NSQ. ``fatal`` says what each does to the connection of a publish.


class NotLeader(ServerError):
    """E_FAILED_ON_NOT_LEADER: another node leads this partition, or too few replicas are alive."""

    code = "E_FAILED_ON_NOT_LEADER"
    fatal = False
    retry = True


class NotWritable(ServerError):
    """E_FAILED_ON_NOT_WRITABLE: the partition takes no writes at the moment, as while its leader moves."""

    code = "E_FAILED_ON_NOT_WRITABLE"
    fatal = False
    retry = True


class TopicNotExist(ServerError):
    """E_TOPIC_NOT_EXIST: this node does not have the partition. Publishing creates no topic here."""

    code = "E_TOPIC_NOT_EXIST"
    retry = True


class BadPartition(ServerError):
    code = "E_BAD_PARTITION"


class TooMuchWaiting(ServerError):
    """E_PUB_TOO_MUCH_WAITING: too many publishes wait on this node."""

    code = "E_PUB_TOO_MUCH_WAITING"
    retry = True


class ExtNotSupported(ServerError):
    """E_EXT_NOT_SUPPORT: the topic was created without support for headers and tags."""

    code = "E_EXT_NOT_SUPPORT"
    fatal = False


class TagNotSupported(ServerError):
    code = "E_TAG_NOT_SUPPORT"
    fatal = False


class BadExt(ServerError):
    code = "E_BAD_EXT"
    fatal = False


class InvalidHeader(ServerError):
    """E_INVALID_JSON_HEADER: the headers are not a JSON object that nsqd accepts."""

    code = "E_INVALID_JSON_HEADER"
    fatal = False


class InvalidTraceId(ServerError):
    code = "INVALID_TRACE_ID"
    fatal = False


class OrderIsMust(ServerError):
    """E_SUB_ORDER_IS_MUST: the topic allows only ordered subscriptions."""

    code = "E_SUB_ORDER_IS_MUST"


class ExtendNeeded(ServerError):
    """E_SUB_EXTEND_NEED: the topic has headers, and the subscription did not ask for them."""

    code = "E_SUB_EXTEND_NEED"
    retry = True


class ExtendForbidden(ServerError):
    """E_SUB_EXTEND_FORBIDDON, as the server spells it: the topic has no headers, and they were asked for."""

    code = "E_SUB_EXTEND_FORBIDDON"
    retry = True


class ChannelNotRegistered(ServerError):
    """E_SUB_CHANNEL_NOT_REGISTERED: the topic's channels are created by its administrators only."""

    code = "E_SUB_CHANNEL_NOT_REGISTERED"


class CreateTopicFailed(ServerError):
    code = "E_CREATE_TOPIC_FAILED"
    fatal = False


#: The refusal of an MPUB by an nsqd that is about to stop.
_EXITING = "E_MPUB_FAILED MPUB failed exiting"


def server_error(data: bytes, *, exiting_not_stored: bool = False) -> ServerError:
    """Return the error for an error frame, of its code's class, or ServerError for an unknown code.

    ``exiting_not_stored``: nsqd has said that it stores no message of an MPUB that it refuses because it is
    about to stop. Others may have stored some.
    """
    text = data.decode("utf-8", "replace")
    code = text.partition(" ")[0]
    error = _BY_CODE.get(code, ServerError)(text, code)
    if exiting_not_stored and text == _EXITING:
        error.maybe_stored = False
    return error


_BY_CODE = {cls.code: cls for cls in ServerError.__subclasses__()}


class PublishFailed(NsqError):
    """No nsqd took the message within the deadline. None has stored it: publishing it again is safe."""

    retry = True


class QueueFull(PublishFailed):
    """``max_pending`` publishes are pending, and none was answered within the deadline."""


class PublishUncertain(NsqError):
    """The message was sent and not answered: it may be stored. Publishing it again may duplicate it."""

    retry = True
    maybe_stored = True


class AlreadyResponded(NsqError):
    """The message was finished or requeued already, or is no longer in flight: it timed out, or its
    connection is gone."""


class Closed(NsqError):
    """The object has been closed and cannot be used again."""


class Forked(Closed):
    """The object was made in the parent process, whose connections this process must not touch."""


class ApiError(NsqError):
    """An HTTP request got no usable answer. The message names the server, never the query: it may hold
    secrets."""

    retry = True


class ApiRefused(ApiError):
    """The server answered with an error: ``status``, and ``code`` such as TOPIC_NOT_FOUND."""

    retry = False

    # Defaults, because pickle passes only the text and sets the other attributes afterwards.
    def __init__(self, text: str, status: int = 0, code: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.code = code


class WalError(NsqError):
    """The write-ahead log between nsqd and Spark cannot be read or written; the message names the file."""


class WalOwned(WalError):
    """Another process reads the log under this reader's name. Every query needs one: option reader."""


class WalForeign(WalError):
    """The log is not the one that the checkpoint refers to, or the location holds other files."""


class SegmentLost(WalError):
    """A sealed segment that a batch needs is missing, or cannot be read to its end."""
