"""The command that checks a server."""

import json
import socket

import pytest

from tests import commands
from tests.serving.made import SIGNATURES
from tests.serving.servers import GrpcServer, Models
from trainers.export.server_check import Check, ResponseTimes, ServerReport


@pytest.fixture(scope="module")
def models(zoo):
    return Models(zoo)


def test_tables():
    checks = [Check("status"), Check("answer", "features", 1.25e-7)]
    checks.append(Check("batch", "features", 1.0, "logits: 1.0e+00 apart"))
    report = ServerReport(checks)
    assert str(report).splitlines() == [
        "| check | signature | difference | verdict |",
        "|---|---|---|---|",
        "| status |  |  | right |",
        "| answer | features | 1.2e-07 | right |",
        "| batch | features | 1.0e+00 | logits: 1.0e+00 apart |",
    ]
    assert not report.passed
    report.times.append(ResponseTimes("features", 1, 2, 3.25, 400))
    assert str(report).splitlines()[-3:] == [
        "| signature | p50 ms | p90 ms | p99 ms | requests/s |",
        "|---|---|---|---|---|",
        "| features | 1.0 | 2.0 | 3.2 | 400.0 |",
    ]


def run(environment, export, *more):
    words = ["-m", "trainers.serve_check", f"--export={export}", *more]
    return commands.run([*words, "--requests=8"], environment)


def test_command_says_what_differs(
    models, other_zoo, subprocess_environment, tmp_path
):
    report = tmp_path / "report.json"
    with GrpcServer(models) as server:
        result = run(
            subprocess_environment,
            other_zoo / "zoo" / "3",
            f"--grpc={server.address}",
            f"--json={report}",
        )
    assert result.returncode == 1
    assert "the largest difference is" in result.stdout
    assert "Traceback" not in result.stderr
    found = json.loads(report.read_text())
    assert not found["passed"] and found["version"] == 3
    assert len(found["checks"]) == 2 + 3 * len(SIGNATURES)
    assert len(found["latencies"]) < len(SIGNATURES)  # Of what is right.


def test_a_tolerance_must_be_finite(zoo, subprocess_environment):
    result = run(
        subprocess_environment,
        zoo / "zoo" / "3",
        "--url=http://127.0.0.1:1",
        "--tolerance=nan",
    )
    assert result.returncode == 1
    assert "`tolerance` must be finite" in result.stderr.splitlines()[-1]


def test_command_without_a_server(zoo, subprocess_environment):
    with socket.socket() as taken:  # By nobody who listens.
        taken.bind(("127.0.0.1", 0))
        result = run(
            subprocess_environment,
            zoo / "zoo" / "3",
            f"--url=http://127.0.0.1:{taken.getsockname()[1]}",
        )
    assert result.returncode == 69
    assert "Retry" not in result.stderr  # The warnings of urllib3.
    line = result.stderr.splitlines()[-1]
    assert line.startswith("Error: No response from http://127.0.0.1:")
    assert "onnection refused" in line and not result.stdout
