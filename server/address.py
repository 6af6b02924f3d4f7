"""Whether the server can listen where it is told to, found out before anything is loaded."""

import errno
import socket

from server.settings import ServerSettings
from server.startup_errors import AddressError


def check_address(settings: ServerSettings) -> None:
    """Find out now whether the server will be able to listen later.

    Raises:
        AddressError: The port is taken, needs privileges, or the host is not this machine's.
    """
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            # As the server does: a port in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = f"port {port} on {host} is taken; stop what uses it, or give another --port"
        elif error.errno == errno.EACCES:
            reason = f"port {port} needs privileges; give a --port above 1023"
        else:
            reason = f"{host} is not an address of this machine; give --host 127.0.0.1 or 0.0.0.0"
        raise AddressError(reason) from None
