"""Ports that stay free until the program of a test listens at them."""

import contextlib
import random
import socket

# Below those that Linux gives to whoever asks for any, as each connection
# does: one of those could be taken before the program listens.
PORTS = range(20_000, 32_768)


def free_ports(count):
    """Return ports of this machine that nobody listens at."""
    with contextlib.ExitStack() as stack:
        found = []
        for port in random.SystemRandom().sample(PORTS, len(PORTS)):
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # It is taken.
                probe.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"no {count} free ports")


def free_addresses(count):
    """Return addresses of this machine that nobody listens at."""
    return [f"127.0.0.1:{port}" for port in free_ports(count)]
