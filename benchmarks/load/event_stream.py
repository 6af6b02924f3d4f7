"""Reads server-sent events out of bytes that may be cut anywhere."""


class EventParser:
    """Puts lines together and hands out the data of each whole event.

    Lines end with a line feed, after a carriage return or without; comments and the fields other
    than `data` are passed over, and an event that no empty line ends is never handed out.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Take more bytes and return the data of the events they complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        return events
