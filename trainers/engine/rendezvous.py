"""Waiting for other processes, with a message and an end.

Needs the standard library alone: `kill_after` runs this file.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

SECONDS_BETWEEN_TRIES = 0.25
SECONDS_BETWEEN_MESSAGES = 30.0
SECONDS_OF_SILENCE = 30.0  # After which a service counts as lost.


class WorkerLostError(RuntimeError):
    """Another process of the training does not respond."""

    exit_code = 69  # In sysexits.h, "service unavailable".


def wait_for_workers(addresses: Sequence[str], own: str, seconds: float):
    """Wait until all workers listen; regularly print which do not.

    Each worker listens at its own address until it has reached all others.
    After that, TensorFlow listens there, so slower workers can reach it too.

    Args:
        addresses: "host:port" of every worker.
        own: The address of this process.
        seconds: How long to wait.

    Raises:
        WorkerLostError: If a worker cannot be reached in this time.
    """
    _meet(dict.fromkeys(addresses, ""), own, seconds).close()


def wait_for_first_worker(addresses: Sequence[str], own: str, seconds: float):
    """Wait until JAX can connect all workers; regularly print which miss.

    The first one waits until all others listen, and then opens its address
    for them. The others wait for that, and go on listening.

    Args:
        addresses: "host:port" of every worker.
        own: The address of this process.
        seconds: How long to wait.

    Returns:
        The socket that listens at `own`, to be kept open as long as this
        process takes part; None for the first one.

    Raises:
        WorkerLostError: If a worker cannot be reached in this time.
    """
    faults = dict.fromkeys(addresses, "")
    if own == addresses[0]:
        del faults[own]
        return _meet(faults, own, seconds)
    return _meet(faults, own, seconds, lambda: addresses[0] not in faults)


def find_lost(addresses: Sequence[str], seconds: float = 2.0) -> list[str]:
    """Return those of some addresses at which nobody listens any more.

    Args:
        addresses: "host:port" of workers.
        seconds: How long to look for the first one.
    """
    end = time.monotonic() + seconds
    while True:
        faults = dict.fromkeys(addresses, "")
        for address in addresses:
            _try_to_reach(address, faults)
        if faults or time.monotonic() > end:
            return list(faults)
        time.sleep(SECONDS_BETWEEN_TRIES)


def _meet(faults, own, seconds, is_enough=lambda: False):
    """Return the socket that listens at `own`, once all are reached.

    Args:
        faults: {address: ""} of those to reach. If `own` is one, the socket
            is opened; otherwise, None is returned.
        own: The address of this process.
        seconds: How long to wait.
        is_enough: Returns whether those reached so far suffice.
    """
    listener = None

    def look():
        nonlocal listener
        if own in faults:
            listener = _listen(own, faults)
        elif listener:
            _accept_waiting(listener)
        for address in set(faults) - {own}:
            _try_to_reach(address, faults)
        if own not in faults and is_enough():
            faults.clear()

    missing = _poll(look, faults, seconds, "workers")
    if not missing:
        return listener
    if listener:
        listener.close()
    raise WorkerLostError(
        "Not all workers could be reached within "
        f"`start_timeout`={seconds:g} seconds; missing: "
        f"{missing}. Start all of them again."
    )


def wait_for_service(address: str, seconds: float):
    """Wait until a tf.data service listens at its address.

    TensorFlow itself would wait without a time limit and handle no signals.

    Args:
        address: "grpc://host:port" of its dispatcher.
        seconds: How long to wait.

    Raises:
        ValueError: If the address does not have this form.
        WorkerLostError: If the service does not listen in time.
    """
    scheme, separator, server = address.partition("://")
    if scheme + separator != "grpc://" or not is_address(server):
        raise ValueError(
            "`data_service` must be 'grpc://host:port'. "
            f"Received: data_service={address!r}"
        )
    faults = {server: ""}
    missing = _poll(
        lambda: _try_to_reach(server, faults),
        faults,
        seconds,
        "the data service",
    )
    if missing:
        raise WorkerLostError(
            f"No data service listens at {missing} within `start_timeout`="
            f"{seconds:g} seconds. Start it, then this again."
        )


@contextlib.contextmanager
def watched_service(address: str | None, end: Callable[[Exception], None]):
    """Call `end` if a data service cannot be reached for a while.

    Runs in another thread, because TensorFlow retries for an hour and handles
    no signals during this time. Checks only whether the address accepts
    connections.

    Args:
        address: "grpc://host:port" of its dispatcher; None watches nothing.
        end: Called with a WorkerLostError; must end the process.
    """
    stop = threading.Event()

    def watch():
        server = address.partition("://")[2]
        heard = time.monotonic()
        while not stop.wait(SECONDS_OF_SILENCE / 10):
            faults = {server: ""}
            _try_to_reach(server, faults)
            now = time.monotonic()
            if not faults:
                heard = now
            elif now - heard > SECONDS_OF_SILENCE:
                error = WorkerLostError(
                    "The data service is no longer listening for "
                    f"{SECONDS_OF_SILENCE:g} seconds: {server} "
                    f"({faults[server]}). Start it, then this again to go on "
                    "from the last checkpoint."
                )
                return end(error)

    thread = threading.Thread(target=watch, daemon=True)
    if address is not None:
        thread.start()
    try:
        yield
    finally:
        stop.set()


def is_address(text: str) -> bool:
    """Return whether a text is of the form "host:port".

    Example:
        >>> is_address("127.0.0.1:5050"), is_address("127.0.0.1:70000")
        (True, False)
    """
    host, _, port = str(text).rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 2**16


def _poll(look, faults, seconds, whom):
    """Call `look` until `faults`, {address: fault}, is empty.

    Regularly prints the missing addresses. Returns those that are missing at
    the end, with the reasons, or "".
    """
    start = time.monotonic()
    next_message = start + SECONDS_BETWEEN_MESSAGES / 3  # The first is early.
    while True:
        look()
        missing = ", ".join(f"{a} ({f})" for a, f in faults.items())
        now = time.monotonic()
        if not missing or now - start > seconds:
            return missing
        if now > next_message:
            next_message = now + SECONDS_BETWEEN_MESSAGES
            left = seconds - (now - start)
            print(
                f"Waiting for {whom}, {left:.0f} s more: {missing}",
                file=sys.stderr,
                flush=True,
            )
        time.sleep(SECONDS_BETWEEN_TRIES)


def _listen(own, faults):
    """Return a socket that listens, or None if the port is taken."""
    try:
        listener = socket.create_server(("", int(own.rpartition(":")[2])))
    except OSError as error:
        faults[own] = f"this one: {error.strerror}"
        return None
    listener.setblocking(False)
    del faults[own]
    return listener


def _accept_waiting(listener):
    """Accept the waiting connections, to make room for more."""
    with contextlib.suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()


def _try_to_reach(address, faults):
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), 1.0).close()
    except OSError as error:
        faults[address] = error.strerror or str(error)
    else:
        del faults[address]


@contextlib.contextmanager
def kill_after(seconds: float):
    """Kill this process with a message if the block takes longer.

    The block may hold the interpreter lock, so another process measures the
    time. That process ends when this one does.
    """
    command = [sys.executable, "-S", "-E", __file__, str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as timer:
        try:
            yield
        finally:
            timer.stdin.close()


def _watch(seconds):
    """Kill the parent unless the standard input is closed in time."""
    # Ctrl-C reaches every process of a terminal; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not select.select([sys.stdin], [], [], seconds)[0]:
        print(
            "Error: a worker was lost while all were starting: TensorFlow has "
            f"waited for {seconds:g} seconds. Killed; start all of them again.",
            file=sys.stderr,
            flush=True,
        )
        os.kill(os.getppid(), signal.SIGKILL)


if __name__ == "__main__":
    _watch(float(sys.argv[1]))
