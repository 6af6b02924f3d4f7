"""Who may touch a model: one at a time, however many have taken it over.

Any thread. A forward of ours changes modules and configurations for its length: which attention
they call and which forward they run. Several may hold the same ones: a model that was taken over
twice, two models with one decoder, two models made from one configuration object. So the lock hangs
on what is changed, and a turn takes those of everything that it may change.
"""

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class _PartsLock:
    """A lock for some objects; turns that need several take the earlier made first."""

    place: int
    mutex: threading.RLock = field(default_factory=threading.RLock)


_registering = threading.Lock()
_places = itertools.count()
# By identity, since configurations compare by their values; an entry goes with its object.
_locks: dict[int, tuple[weakref.ref[object], _PartsLock]] = {}


class Turn:
    """The right to change a set of objects; nobody else has it for any of them meanwhile."""

    def __init__(self, parts: Iterable[object]) -> None:
        """Find the locks of objects that have one, and make one for all the others.

        Args:
            parts: What is changed during a turn; held weakly.
        """
        with _registering:
            new = _PartsLock(next(_places))
            found = {new.place: new}
            for part in parts:
                known = _locks.get(id(part))
                if known is None:
                    _locks[id(part)] = (weakref.ref(part, _forget(id(part))), new)
                else:
                    found[known[1].place] = known[1]
        self._mutexes = [found[place].mutex for place in sorted(found)]

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have the turn for the length of a with block; may be nested."""
        with ExitStack() as stack:
            for mutex in self._mutexes:
                stack.enter_context(mutex)
            yield


def _forget(key: int) -> Callable[[object], object]:
    """Return what drops an object's entry; it may run at any moment, so it takes no lock."""
    return lambda _: _locks.pop(key, None)
