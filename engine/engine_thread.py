"""The engine thread's life: building, starting, stopping and what is left afterwards.

Called from callers' threads; `_run` is the body of the engine thread.

    built --start--> running --stop--> stopped --start--> running ... --destroy--> gone
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable

from engine.loop import Channels, EngineLoop
from engine.mailbox import Mailbox, StopMode

logger = logging.getLogger(__name__)

# How long the interpreter waits at its exit for a step to end, in seconds.
EXIT_TIMEOUT_SECONDS = 10.0


class EngineThread:
    """Owns the loop and the thread that runs it."""

    def __init__(self, build: Callable[[], EngineLoop], channels: Channels) -> None:
        """Build the loop, the cache's memory included; the thread is not started.

        Args:
            build: Makes the loop; called again for a start after a stop that kept nothing.
            channels: What the loop shares with callers.
        """
        self.loop: EngineLoop | None = build()
        self._build = build
        self._channels = channels
        self._threads: list[threading.Thread] = []
        self._lifecycle = threading.RLock()
        self._turning = False
        self._keep = False
        self._destroyed = False
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
        with self._lifecycle:
            if self._destroyed:
                raise RuntimeError("a destroyed manager cannot be started again; make a new one")
            if self.is_alive:
                logger.warning("the engine runs already")
                return
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
            self._keep = keep
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

    def destroy(self) -> None:
        """Stop for good and give the memory back; may be called again."""
        self._check_not_paused()
        with self._lifecycle:
            self._destroyed = True  # from here on nobody starts it again
            runs = self.is_alive
            if not runs:
                self._end_unstarted()
        if runs:
            self.stop(hard=False, keep=False, block=True, timeout=None)
        self.loop = None

    def loop_to_warm_up(self) -> EngineLoop | None:
        """Return the loop if it may be run by the caller: it exists and its thread does not."""
        with self._lifecycle:
            if self.is_alive or self._destroyed:
                return None
            if self.loop is None:
                self.loop = self._build()
            return self.loop

    def _run(self) -> None:
        """Run the loop, then leave things ready for a next start."""
        assert self.loop is not None
        error = self.loop.run()
        self._channels.gate.close()
        if not self._keep or error is not None:
            self.loop = None
        self._turning = False
        self._channels.pause.set_ended(True, error)
        self._channels.router.store.wake()

    def _check_not_paused(self) -> None:
        if self._channels.pause.held_from_here:
            raise RuntimeError("stop() inside this thread's own pause() would wait for itself")

    def _end_unstarted(self) -> None:
        """Give requests that were accepted but never ran their terminal outputs."""
        self._channels.mailbox.post_stop(StopMode.HARD)
        if self.loop is not None and self._channels.mailbox.num_live > 0:
            self.loop.run()


def _end_at_exit(mailbox: Mailbox, threads: list[threading.Thread]) -> None:
    mailbox.post_stop(StopMode.HARD)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(EXIT_TIMEOUT_SECONDS)
