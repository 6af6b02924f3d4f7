"""Whether the server can, and may, listen where it is told to; found out before it loads."""

import errno
import ipaddress
import socket

from server.settings import ServerSettings, Settings
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


def check_exposure(settings: Settings) -> None:
    """Refuse to let anybody on the network in unless somebody has said so.

    Raises:
        AddressError: Others can reach the address, there is no key, and nothing allows that.
    """
    host = settings.server.host
    if settings.keys.clients or settings.security.allow_unauthenticated or is_loopback(host):
        return
    raise AddressError(
        f"{host} can be reached from other machines and there is no key; set SLIPSTREAM_API_KEY or "
        "--api-keys-file, or give --allow-unauthenticated"
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address; a name counts by all it stands for."""
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)
    except OSError:
        return True  # it is no address of this machine, and cannot be listened on
    addresses = {str(entry[4][0]).partition("%")[0] for entry in found}
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)
