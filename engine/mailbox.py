"""What callers' threads hand to the engine thread: requests, cancellations, a stop.

The one place where both sides meet, behind one condition. Closing is atomic with taking what is
left, so a request is either refused or gets its terminal output; nothing is accepted and lost.
"""

import threading
from dataclasses import dataclass, field
from enum import IntEnum

from engine.errors import DuplicateRequestError, EngineDeadError, EngineStoppingError
from engine.requests import RequestState


class StopMode(IntEnum):
    """How the loop is to end; it can only get more urgent."""

    NONE = 0
    DRAIN = 1
    HARD = 2


@dataclass(slots=True)
class Mail:
    """What has arrived since the last look.

    Attributes:
        requests: New requests, in order of arrival.
        cancelled: Ids of requests that are to end.
        stop: How the loop is to end.
        forget: Whether all that was computed so far is to be forgotten.
    """

    requests: list[RequestState] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    stop: StopMode = StopMode.NONE
    forget: bool = False


class Mailbox:
    """Requests and commands on their way to the engine thread."""

    def __init__(self) -> None:
        """Start open and empty."""
        self._mail = Mail()
        self._stop = StopMode.NONE
        self._open = True
        self._cause: BaseException | None = None
        self._live_ids: set[str] = set()
        self._ending_ids: set[str] = set()
        self._poked = False
        self._forget = False
        self._arrived = threading.Condition()

    def check_open(self) -> None:
        """Raise if requests are not taken.

        Raises:
            EngineDeadError: The loop died; chained to what killed it.
            EngineStoppingError: The engine stops or has stopped.
        """
        if self._cause is not None:
            raise EngineDeadError.of(self._cause)
        if not self._open or self._stop is not StopMode.NONE:
            raise EngineStoppingError("the engine is stopping and takes no requests")

    def post(self, *requests: RequestState) -> None:
        """Hand requests over, all or none.

        Raises:
            DuplicateRequestError: An id belongs to a request that has not ended.
            EngineDeadError: See `check_open`.
            EngineStoppingError: See `check_open`.
        """
        with self._arrived:
            self.check_open()
            for request in requests:
                if request.request_id in self._live_ids:
                    raise DuplicateRequestError(request.request_id)
            self._live_ids.update(request.request_id for request in requests)
            self._mail.requests.extend(requests)
            self._arrived.notify_all()

    def post_cancel(self, request_id: str) -> None:
        """Ask for a request to end; one that is unknown or has ended is ignored."""
        with self._arrived:
            if request_id in self._live_ids:
                self._mail.cancelled.append(request_id)
                self._arrived.notify_all()

    def post_stop(self, mode: StopMode) -> None:
        """Ask the loop to end."""
        with self._arrived:
            self._stop = max(self._stop, mode)
            self._arrived.notify_all()

    def post_forget(self) -> None:
        """Ask for all computed keys and values to be forgotten; outlives a stop and a start."""
        with self._arrived:
            self._forget = True
            self._arrived.notify_all()

    def poke(self) -> None:
        """Wake the engine thread without mail, so that it looks at something else."""
        with self._arrived:
            self._poked = True
            self._arrived.notify_all()

    def take(self, *, wait: bool) -> Mail:
        """Take what has arrived; on the engine thread.

        Args:
            wait: Sleep until something arrives, because there is nothing else to do.
        """
        with self._arrived:
            if wait:
                self._arrived.wait_for(self._has_mail)
            self._poked = False
            mail, self._mail = self._mail, Mail()
            mail.stop = self._stop
            mail.forget, self._forget = self._forget, False
            return mail

    def close(self, cause: BaseException | None = None) -> list[RequestState]:
        """Take no more requests; return the ones that nobody will take.

        Args:
            cause: What killed the loop, or None if it was asked to stop.
        """
        with self._arrived:
            self._open = False
            self._cause = cause
            mail, self._mail = self._mail, Mail()
            return mail.requests

    def reopen(self) -> None:
        """Take requests again, after a stop."""
        with self._arrived:
            self._open = True
            self._cause = None
            self._stop = StopMode.NONE

    def end(self, request_ids: list[str]) -> None:
        """Free the ids of requests that have ended, before their terminal outputs are delivered.

        Whoever receives such an output may use its id again at once. Until `forget`, the requests
        still count as live for whoever waits for the output. A cancellation that came too late goes
        with them: it is not meant for the next request of that id.
        """
        with self._arrived:
            ended = set(request_ids)
            self._live_ids -= ended
            self._ending_ids |= ended
            self._mail.cancelled = [name for name in self._mail.cancelled if name not in ended]

    def forget(self) -> None:
        """Note that the terminal outputs of all requests that ended have been delivered."""
        with self._arrived:
            self._ending_ids.clear()

    def is_live(self, request_id: str) -> bool:
        """Return whether a request was accepted and its terminal output is still to come."""
        return request_id in self._live_ids or request_id in self._ending_ids

    @property
    def num_live(self) -> int:
        """Requests that were accepted and whose terminal output is still to come."""
        return len(self._live_ids) + len(self._ending_ids)

    @property
    def cause(self) -> BaseException | None:
        """What killed the loop, or None; known before the outputs that tell of it."""
        return self._cause

    @property
    def is_stopping(self) -> bool:
        """Whether a stop was asked for or has happened."""
        return self._stop is not StopMode.NONE or not self._open

    def _has_mail(self) -> bool:
        mail = self._mail
        return bool(mail.requests or mail.cancelled or self._stop or self._poked or self._forget)
