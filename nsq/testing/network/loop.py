"""The thread that moves a network's bytes: an event loop over sockets and timers.

Only this thread uses a network's objects; other threads let it call functions. Knows no connections and no
faults.
"""

from __future__ import annotations

import contextlib
import math
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from nsq.errors import Closed

T = TypeVar("T")

Ready = Callable[[int], None]
"""Called with the events that the socket is ready for."""

CALL_TIMEOUT = 30.0
_LONGEST_WAIT = 3600.0


class Loop:
    """Calls ``tick`` with the time after every round; ``tick`` returns when to call it next."""

    def __init__(self, name: str, tick: Callable[[float], float]) -> None:
        self._tick = tick
        self._selector = selectors.DefaultSelector()
        self._waker, self._wakened = socket.socketpair()
        self._waker.setblocking(False)
        self._wakened.setblocking(False)
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ending = False
        self._lock = threading.Lock()  # guards ``_closed``: every call is executed or raises Closed
        self._closed = False
        self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self.watch(self._wakened, selectors.EVENT_READ, self._clear)
        self._thread.start()

    def stop(self, last: Callable[[], None]) -> None:
        """Call ``last`` on the loop's thread and end it. Raises the error that ended the loop, if any."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            failed, self._closed = self._closed, True

        def end() -> None:
            self._ending = True
            last()

        if not failed:
            self._put(end)
        self._thread.join(CALL_TIMEOUT)
        if self._thread.is_alive():
            raise TimeoutError(f"{self._thread.name} did not end within {CALL_TIMEOUT:g} s")
        if failed:
            last()
        self.close()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Close the descriptors."""
        self._selector.close()
        self._waker.close()
        self._wakened.close()

    def call(self, call: Callable[[], T]) -> T:
        """Call a function on the loop's thread, and return its result or raise its error."""
        if threading.current_thread() is self._thread:
            return call()
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        with self._lock:
            if self._closed:
                why = "been closed" if self._error is None else f"failed: {self._error!r}"
                raise Closed(f"the network has {why}")
            self._put(run)
        return future.result(CALL_TIMEOUT)

    def abandon(self) -> None:
        """Close in a forked child, which has no loop thread. Does not take the parent's lock."""
        self._lock = threading.Lock()
        self._closed = self._stopped = True
        self.close()

    def watches(self, sock: socket.socket) -> bool:
        return sock in self._selector.get_map()

    def watch(self, sock: socket.socket, interest: int, ready: Ready) -> None:
        """Call ``ready`` when the socket is ready for events of ``interest``; 0 stops that."""
        try:
            known = self._selector.get_key(sock)
        except KeyError:
            if interest:
                self._selector.register(sock, interest, ready)
            return
        if not interest:
            self._selector.unregister(sock)
        elif known.events != interest:
            self._selector.modify(sock, interest, known.data)

    def _put(self, call: Callable[[], None]) -> None:
        self._calls.put(call)
        with contextlib.suppress(BlockingIOError):  # the buffer is full, so the loop will wake up anyway
            self._waker.send(b"\0")

    def _clear(self, _: int) -> None:
        self._wakened.recv(65536)

    def _run(self) -> None:
        try:
            due = math.inf
            while not self._ending:
                self._wait(due)
                self._answer_calls()
                if not self._ending:
                    due = self._tick(time.monotonic())
        except BaseException as error:
            self._error = error
            with self._lock:
                self._closed = True
            self._answer_calls()

    def _wait(self, due: float) -> None:
        timeout = min(max(0.0, due - time.monotonic()), _LONGEST_WAIT)
        for key, events in self._selector.select(timeout):
            # An earlier callback may have closed this socket.
            if self._selector.get_map().get(key.fd) is key:
                key.data(events)

    def _answer_calls(self) -> None:
        while not self._calls.empty():
            self._calls.get_nowait()()
