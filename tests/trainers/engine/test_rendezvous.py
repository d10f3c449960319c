"""Workers that find each other, as threads of one process; and the clock."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests.ports import free_addresses
from trainers.engine import rendezvous
from trainers.engine.rendezvous import (
    WorkerLostError,
    wait_for_service,
    wait_for_workers,
    watched_service,
)


@pytest.fixture
def addresses():
    """Return three addresses of this machine that nobody listens at."""
    return free_addresses(3)


def serve(address):
    """Stand for the TensorFlow of a worker that has seen all the others."""
    return socket.create_server(("", int(address.rpartition(":")[2])))


def test_all_wait_for_the_last(addresses):
    servers, ends = [], {}

    def work(address):
        wait_for_workers(addresses, address, 100)
        servers.append(serve(address))
        ends[address] = time.monotonic()

    threads = [threading.Thread(target=work, args=(a,)) for a in addresses]
    for thread in threads[:2]:
        thread.start()
    time.sleep(0.6)
    assert not ends
    last = time.monotonic()
    threads[2].start()
    for thread in threads:
        thread.join()
    for server in servers:
        server.close()
    assert ends.keys() == set(addresses) and min(ends.values()) > last


def test_a_missing_worker_is_named_and_awaited_for_the_timeout(
    addresses, capsys, monkeypatch
):
    monkeypatch.setattr(rendezvous, "SECONDS_BETWEEN_MESSAGES", 0.6)
    start = time.monotonic()
    with serve(addresses[1]), pytest.raises(WorkerLostError) as caught:
        wait_for_workers(addresses, addresses[0], 1)
    assert 1 < time.monotonic() - start < 3
    missing = f"{addresses[2]} (Connection refused)"
    assert f"within `start_timeout`=1 seconds; missing: {missing}" in str(
        caught.value
    )
    words = capsys.readouterr().err.splitlines()
    assert words and all(
        word.startswith("Waiting for workers, ") and word.endswith(missing)
        for word in words
    )


def test_a_port_that_is_taken_is_waited_for(addresses):
    """By the run before, which may still be ending."""
    own = addresses[0]
    with (
        serve(own),
        pytest.raises(WorkerLostError, match=rf"{own} \(this one: Address alr"),
    ):
        wait_for_workers([own], own, 0.5)
    taken = serve(own)
    timer = threading.Timer(0.5, taken.close)
    timer.start()
    wait_for_workers([own], own, 100)
    timer.join()


def test_a_name_that_nobody_has_is_an_absent_worker(addresses):
    with pytest.raises(WorkerLostError, match="missing: a.invalid:1234 "):
        wait_for_workers([addresses[0], "a.invalid:1234"], addresses[0], 0)


SCRIPT = """
import ctypes, sys
from trainers.engine.rendezvous import kill_after
with kill_after(0.5):
    print("in", flush=True)
    # Holds the lock of the interpreter, as TensorFlow does.
    ctypes.PyDLL(None).usleep(int(sys.argv[1]))
print("out")
"""


def test_work_that_holds_the_interpreter_is_ended(subprocess_environment):
    start = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, "60000000"],
        env=subprocess_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == -signal.SIGKILL
    assert "TensorFlow has waited for 0.5 seconds" in result.stderr
    assert time.monotonic() - start < 30


def test_the_clock_does_not_outlive_its_process(subprocess_environment):
    script = SCRIPT.replace("kill_after(0.5)", "kill_after(600)")
    with subprocess.Popen(
        [sys.executable, "-c", script, "60000000"],
        env=subprocess_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        # Ends when the clock, which has inherited it, has ended as well.
        assert process.stderr.read() == b""


def test_a_data_service_is_waited_for(addresses, capsys, monkeypatch):
    """And named if it does not come, or is none."""
    monkeypatch.setattr(rendezvous, "SECONDS_BETWEEN_MESSAGES", 0.3)
    with pytest.raises(WorkerLostError, match="No data service .*refused"):
        wait_for_service(f"grpc://{addresses[0]}", 0.3)
    assert "Waiting for the data service" in capsys.readouterr().err
    servers = []
    late = threading.Timer(0.5, lambda: servers.append(serve(addresses[0])))
    late.start()
    wait_for_service(f"grpc://{addresses[0]}", 100)
    late.join()
    servers[0].close()
    for address in ("x:1", "grpc://:1", "grpc://x", "grpc://x:70000"):
        with pytest.raises(ValueError, match="`data_service` must be .*x?:"):
            wait_for_service(address, 1)


def test_a_data_service_that_is_lost_ends_the_training(addresses, monkeypatch):
    monkeypatch.setattr(rendezvous, "SECONDS_OF_SILENCE", 0.5)
    address, errors, ended = addresses[0], [], threading.Event()

    def end(error):
        errors.append(str(error))
        ended.set()

    with watched_service(f"grpc://{address}", end):
        with serve(address):
            assert not ended.wait(1.2)
        lost = time.monotonic()
        assert ended.wait(100) and time.monotonic() - lost > 0.4
    [error] = errors
    assert f"0.5 seconds: {address} (Connection refused)" in error
    with watched_service(f"grpc://{address}", end):
        pass  # Ended in time.
    with watched_service(None, end):
        time.sleep(0.8)
    assert len(errors) == 1
