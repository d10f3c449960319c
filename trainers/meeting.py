"""Workers find each other before TensorFlow is started.

TensorFlow waits for the others without a limit and without a word, and holds
the lock of the interpreter meanwhile: no signal is heard, no other thread
runs. Here the wait is a loop of ours.
"""

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

SECONDS_BETWEEN_TRIES = 0.25
SECONDS_BETWEEN_WORDS = 30.0


class WorkerLostError(RuntimeError):
    """Another process of the training does not answer."""


def meet(addresses: Sequence[str], own: str, seconds: float):
    """Return when all workers listen; say every now and then who does not.

    Each listens at its own address until it has seen all the others. From then
    on TensorFlow listens there, so that the slower ones see it as well.

    Args:
        addresses: "host:port" of every worker.
        own: That of this process.
        seconds: How long to wait.

    Raises:
        WorkerLostError: If some do not come.
    """
    start = time.monotonic()
    word = start + SECONDS_BETWEEN_WORDS / 3  # The first one early.
    faults = dict.fromkeys(addresses, "")
    with contextlib.ExitStack() as stack:
        listener = None
        while True:
            if listener is None:
                listener = _listen(own, faults)
                if listener:
                    stack.enter_context(listener)
            else:
                _hang_up(listener)
            for address in set(faults) - {own}:
                _try_to_reach(address, faults)
            if not faults:
                return
            now = time.monotonic()
            missing = ", ".join(f"{a} ({f})" for a, f in faults.items())
            if now - start > seconds:
                raise WorkerLostError(
                    "Not all workers have come within `start_timeout`="
                    f"{seconds:g} seconds; missing: {missing}. Start all of "
                    "them again."
                )
            if now > word:
                word = now + SECONDS_BETWEEN_WORDS
                left = seconds - (now - start)
                print(
                    f"Waiting for workers, {left:.0f} s more: {missing}",
                    file=sys.stderr,
                    flush=True,
                )
            time.sleep(SECONDS_BETWEEN_TRIES)


def reach_service(address: str, seconds: float):
    """Return when something listens where a tf.data service should.

    TensorFlow would wait for it without a limit, and hear no signal.

    Args:
        address: "grpc://host:port" of its dispatcher.
        seconds: How long to wait.

    Raises:
        ValueError: If the address is not of that form.
        WorkerLostError: If nothing listens there in time.
    """
    match = re.fullmatch(r"grpc://(.+:(\d{1,5}))", address)
    if not match or int(match[2]) >= 2**16:
        raise ValueError(
            "`data_service` must be 'grpc://host:port'. "
            f"Received: data_service={address!r}"
        )
    start, has_spoken = time.monotonic(), False
    faults = {match[1]: ""}
    while True:
        _try_to_reach(match[1], faults)
        if not faults:
            return
        [fault] = faults.values()
        if time.monotonic() - start > seconds:
            raise WorkerLostError(
                f"No data service listens at {address} within `start_timeout`="
                f"{seconds:g} seconds ({fault}). Start it, then this again."
            )
        if not has_spoken:
            has_spoken = True
            print(
                f"Waiting for the data service at {address}, {seconds:.0f} s "
                f"at most: {fault}",
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


def _hang_up(listener):
    """Take the calls that came, so that there is room for more."""
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
def limit(seconds: float):
    """Kill this process if the work inside takes longer; say so.

    For what holds the lock of the interpreter: another process looks at the
    clock. It ends when this one does.
    """
    command = [sys.executable, "-S", "-E", __file__, str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as clock:
        try:
            yield
        finally:
            clock.stdin.close()


def _watch(seconds):
    """Kill the parent unless the standard input ends before."""
    # Ctrl-C goes to all of a terminal; the parent decides what to do.
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
