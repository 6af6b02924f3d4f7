"""How many with blocks use one manager at the same moment.

Callers' threads. A manager that is kept on its model may be used by several threads at once: the
first to come starts it, the last to go stops it, and it is kept if one of them asked for that.
"""

import threading


class Sessions:
    """Counts who is inside.

    Attributes:
        changing: Held while somebody comes or goes, and while what follows from it is decided.
    """

    # One for all models: what is done under it takes milliseconds.
    changing = threading.RLock()

    def __init__(self) -> None:
        """Nobody is inside."""
        self.num_open = 0
        self._keep = False

    def enter(self, *, keep: bool) -> None:
        """Come in.

        Args:
            keep: Whether the manager is to be kept when everybody has gone.
        """
        with self.changing:
            self.num_open += 1
            self._keep |= keep

    def leave(self) -> bool | None:
        """Go.

        Returns:
            None if somebody is still inside, else whether the manager is to be kept.
        """
        with self.changing:
            self.num_open -= 1
            if self.num_open:
                return None
            keep, self._keep = self._keep, False
            return keep
