"""The engine thread's life: building, starting, stopping and what is left afterwards.

Called from callers' threads; `_run` is the body of the engine thread.

    built --start--> running --stop--> stopped --start--> running ... --destroy--> gone
"""

import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable

from engine.loop import Channels, EngineLoop
from engine.mailbox import Mailbox, StopMode
from engine.sampling.options import SamplingLimits

logger = logging.getLogger(__name__)

# How long the interpreter waits at its exit for a step to end, in seconds.
EXIT_TIMEOUT_SECONDS = 10.0


class EngineThread:
    """Owns the loop and the thread that runs it."""

    def __init__(
        self, build: Callable[[], EngineLoop], channels: Channels, niceness: int = 0
    ) -> None:
        """Build the loop, the cache's memory included; the thread is not started.

        Args:
            build: Makes the loop; called again for a start after a stop that kept nothing.
            channels: What the loop shares with callers.
            niceness: How far the thread stands back behind others, 0 to 19.
        """
        self.loop: EngineLoop | None = build()
        self._build = build
        self._channels = channels
        self._niceness = niceness
        self._threads: list[threading.Thread] = []
        self._lifecycle = threading.RLock()
        self._turning = False
        self._keep = False
        self.is_destroyed = False
        self.warmed_up = False
        # A forgotten engine must not keep the interpreter from exiting, nor be cut off inside a
        # forward while the interpreter goes down around it.
        weakref.finalize(self, _end_at_exit, channels.mailbox, self._threads)

    @property
    def fatal_error(self) -> BaseException | None:
        """What killed the loop, or None; known before the outputs that tell of it."""
        return self._channels.mailbox.cause

    @property
    def is_alive(self) -> bool:
        """Whether the thread was started and has not ended."""
        return bool(self._threads) and self._threads[0].is_alive()

    @property
    def is_turning(self) -> bool:
        """Whether outputs may still come: the loop has neither ended nor died."""
        return self._turning

    def start(self) -> None:
        """Start the thread; see `ContinuousBatchingManager.start`."""
        while True:
            with self._lifecycle:
                if self.is_destroyed:
                    raise RuntimeError(
                        "a destroyed manager cannot be started again; make a new one"
                    )
                if not self.is_alive:
                    self._start()
                    return
                if not self._channels.mailbox.is_stopping:
                    logger.warning("the engine runs already")
                    return
            self._check_not_paused()
            self.join(time.perf_counter(), None)

    def _start(self) -> None:
        """Start a thread, under the lock."""
        if self.loop is None:
            self.loop = self._build()
        if self._channels.mailbox.is_stopping:
            self._channels.mailbox.reopen()
            self._channels.gate.reopen()
        self._keep = False
        self._turning = True
        self._channels.pause.set_ended(False)
        thread = threading.Thread(target=self._run, name="slipstream-engine", daemon=True)
        self._threads[:] = [thread]
        thread.start()

    def stop(self, *, hard: bool, keep: bool, block: bool, timeout: float | None) -> None:
        """Stop the thread; see `ContinuousBatchingManager.stop`."""
        self._check_not_paused()
        triggered = time.perf_counter()
        with self._lifecycle:
            # Of several who stop it, one who wants to keep the cache is enough.
            self._keep |= keep
            self._channels.mailbox.post_stop(StopMode.HARD if hard else StopMode.DRAIN)
            self._channels.gate.close()
            runs = self.is_alive
            if not runs:
                logger.warning("stop() was called, but the engine does not run")
                self._end_unstarted()
        if runs and block:
            self.join(triggered, timeout)

    def join(self, stop_trigger_time: float, timeout: float | None) -> None:
        """Wait for the thread to end; see `ContinuousBatchingManager.join`."""
        for thread in list(self._threads):
            thread.join(timeout)
            waited = time.perf_counter() - stop_trigger_time
            if thread.is_alive():
                logger.warning("the engine has not stopped after %.1f s", waited)
            else:
                logger.info("the engine stopped after %.1f s", waited)

    def mark_destroyed(self) -> None:
        """Let nobody start it again."""
        self._check_not_paused()
        with self._lifecycle:
            self.is_destroyed = True

    def destroy(self) -> None:
        """Stop for good and give the memory back; may be called again."""
        self.mark_destroyed()
        with self._lifecycle:
            runs = self.is_alive
            if not runs:
                self._end_unstarted()
        if runs:
            self.stop(hard=False, keep=False, block=True, timeout=None)
        self.loop = None

    def warm_up(self, limits: SamplingLimits) -> bool:
        """Warm up the loop on this thread, once; nobody starts it meanwhile.

        Returns:
            Whether it is warm; False if its thread runs already.
        """
        with self._lifecycle:
            if self.warmed_up:
                return True
            if self.is_alive or self.is_destroyed:
                return False
            if self.loop is None:
                self.loop = self._build()
            self.loop.warm_up(limits)
            self.warmed_up = True
            return True

    def _run(self) -> None:
        """Run the loop, then leave things ready for a next start."""
        assert self.loop is not None
        _stand_back(self._niceness)
        try:
            error = self.loop.run()
        except BaseException as failure:
            # Not even telling of a death went well: who asks is told at least.
            logger.exception("the engine thread failed")
            self._channels.mailbox.close(failure)
            error = failure
        self._channels.gate.close()
        if not self._keep or error is not None:
            self.loop = None
        self._turning = False
        self._channels.pause.set_ended(True, error)
        self._channels.router.store.wake()

    def _check_not_paused(self) -> None:
        if self._channels.pause.held_from_here:
            raise RuntimeError("inside this thread's own pause() this would wait for itself")

    def _end_unstarted(self) -> None:
        """Give requests that were accepted but never ran their terminal outputs."""
        self._channels.mailbox.post_stop(StopMode.HARD)
        if self.loop is not None and self._channels.mailbox.num_live > 0:
            self.loop.run()


def _stand_back(niceness: int) -> None:
    """Have this thread, and those that it starts, wait for others where processors are few."""
    # Elsewhere the priority is one of the process, the event loop's thread included.
    if niceness and sys.platform == "linux":
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + niceness)


def _end_at_exit(mailbox: Mailbox, threads: list[threading.Thread]) -> None:
    mailbox.post_stop(StopMode.HARD)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(EXIT_TIMEOUT_SECONDS)
