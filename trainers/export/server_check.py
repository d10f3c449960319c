"""Checking a server, measuring its response times, and reporting both."""

import dataclasses
import sys
from collections.abc import Iterable, Iterator

import numpy as np

from keras_vit.serving import Client, ServingError, UnavailableError
from keras_vit.serving.checks import Check, check_server
from keras_vit.serving.exported_version import ExportedVersion
from keras_vit.serving.response_times import (
    ResponseTimes,
    measure_response_times,
)
from keras_vit.tables import format_table


@dataclasses.dataclass
class ServerReport:
    """The results of checking a server, collected step by step.

    Args:
        checks: The results of all checks so far.
        times: The response times of each signature that passed.
    """

    checks: list[Check] = dataclasses.field(default_factory=list)
    times: list[ResponseTimes] = dataclasses.field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether all checks so far passed."""
        return not any(check.fault for check in self.checks)

    def __str__(self):
        """Return the tables as Markdown."""
        tables = [format_checks(self.checks)] if self.checks else []
        if self.times:
            tables.append(format_times(self.times))
        return "\n\n".join(tables)

    def to_json(self) -> dict:
        """Return the report for JSON, with nan as a string."""
        return {
            "passed": self.passed,
            "checks": [check_to_json(check) for check in self.checks],
            "latencies": [vars(times) for times in self.times],
        }


def fill_report(
    report: ServerReport,
    client: Client,
    export: ExportedVersion,
    *,
    tolerance: float,
    num_requests: int,
    concurrency: int,
):
    """Check a server and measure the signatures that pass.

    Args:
        report: Filled step by step, so that it can be shown after an error.
        client: A client of the version of the export.
        export: The export with the expected outputs.
        tolerance: Largest allowed difference from the expected outputs.
        num_requests: Number of timed requests per signature; 0 for none.
        concurrency: Number of concurrent requests.

    Raises:
        UnavailableError: If the server cannot be reached.
    """
    for check in check_server(client, export, tolerance):
        report.checks.append(check)
        say(f"{check.what} {check.signature}".strip())
    try:
        for record in passed_records(report, export):
            if num_requests:
                say(f"{num_requests} requests {record.signature}")
                times = measure_response_times(
                    client, record, num_requests, concurrency
                )
                report.times.append(times)
    except UnavailableError:
        raise
    except ServingError as error:
        report.checks.append(Check("load", fault=str(error)))


def passed_records(report: ServerReport, export: ExportedVersion) -> Iterator:
    """Yield the records of the signatures with correct responses."""
    passed = {
        check.signature
        for check in report.checks
        if check.what == "answer" and not check.fault
    }
    yield from (r for r in export.records if r.signature in passed)


def format_checks(checks: Iterable[Check]) -> str:
    """Return the table of the checks."""
    rows = []
    for check in checks:
        number = "" if check.difference is None else f"{check.difference:.1e}"
        rows.append(
            (check.what, check.signature, number, check.fault or "right")
        )
    return format_table(("check", "signature", "difference", "verdict"), rows)


def format_times(times: Iterable[ResponseTimes]) -> str:
    """Return the table of the response times."""
    rows = []
    for row in times:
        name, *numbers = dataclasses.astuple(row)
        rows.append((name, *(f"{number:.1f}" for number in numbers)))
    columns = ("signature", "p50 ms", "p90 ms", "p99 ms", "requests/s")
    return format_table(columns, rows)


def check_to_json(check: Check) -> dict:
    """Return a check for JSON, with nan as a string.

    Example:
        >>> check_to_json(Check("answer", "features", np.nan))["difference"]
        'nan'
    """
    number = check.difference
    if number is not None and not np.isfinite(number):
        number = str(number)
    return vars(check) | {"difference": number}


def say(text: str):
    """Print progress to the standard error."""
    print(text, file=sys.stderr, flush=True)
