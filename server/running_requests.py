"""The requests that are being answered, by every name that their clients may know them by.

A name is the id of the answer, which is unique, or a label of the client's own, which may stand for
several requests. Event loop only.
"""

from collections.abc import Callable, Iterable

End = Callable[[BaseException], None]


class RunningRequests:
    """Finds running requests by name and ends them."""

    def __init__(self) -> None:
        """Start with none."""
        self._by_name: dict[str, list[End]] = {}

    def enter(self, names: Iterable[str], end: End) -> Callable[[], None]:
        """Add a request.

        Args:
            names: What it is called.
            end: Ends it with an error that its reader gets; may be called after its end.

        Returns:
            Removes it; may be called again.
        """
        kept = [name for name in dict.fromkeys(names) if name]
        for name in kept:
            self._by_name.setdefault(name, []).append(end)

        def leave() -> None:
            while kept:
                name = kept.pop()
                self._by_name[name].remove(end)
                if not self._by_name[name]:
                    del self._by_name[name]

        return leave

    def end(self, name: str, error: BaseException) -> int:
        """End every request of a name and return how many there were."""
        ends = list(self._by_name.get(name, ()))
        for end in ends:
            end(error)
        return len(ends)

    def __len__(self) -> int:
        """Return how many names are known."""
        return len(self._by_name)
