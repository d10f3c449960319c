"""Metrics for Prometheus, with the names of TF Serving."""

import bisect
import collections
import threading

# Microseconds: 33 buckets from 10 us, each 1.8 times as long.
BUCKETS = [10 * 1.8**i for i in range(33)]
METRICS_PATH = "/monitoring/prometheus/metrics"
PREFIX = ":tensorflow:serving:"


class Metrics:
    """Counters and histograms, by their labels. It is thread-safe."""

    def __init__(self):
        self._lock = threading.Lock()
        self._counters = collections.defaultdict(collections.Counter)
        self._histograms = collections.defaultdict(dict)

    def count_request(self, name: str, api: str, code: str, seconds: float):
        """Count a request.

        Args:
            name: The model.
            api: "predict" or "classify".
            code: The status, as named by gRPC.
            seconds: From the first byte to the last.
        """
        self._count("request_count", 1, model_name=name, status=code)
        if code == "OK":
            self._time(
                "request_latency",
                seconds,
                model_name=name,
                API=api,
                entrypoint="REST",
            )

    def count_inference(self, name: str, seconds: float, num_rows: int):
        """Count an inference.

        Args:
            name: The model.
            seconds: How long it took.
            num_rows: The instances in it.
        """
        self._count("request_example_count_total", num_rows, model=name)
        self._time(
            "runtime_latency",
            seconds,
            model_name=name,
            API="Predict",
            runtime="TF1",
        )

    def _count(self, name, number, **labels):
        with self._lock:
            self._counters[name][print_labels(labels)] += number

    def _time(self, name, seconds, **labels):
        microseconds = seconds * 1e6
        with self._lock:
            row = self._histograms[name].setdefault(
                print_labels(labels), [[0] * (len(BUCKETS) + 1), 0.0]
            )
            row[0][bisect.bisect_left(BUCKETS, microseconds)] += 1
            row[1] += microseconds

    def __str__(self):
        """Return the text that Prometheus reads."""
        lines = []
        with self._lock:
            for name, rows in sorted(self._counters.items()):
                lines.append(f"# TYPE {PREFIX}{name} counter")
                for labels, number in rows.items():
                    lines.append(f"{PREFIX}{name}{{{labels}}} {number}")
            for name, rows in sorted(self._histograms.items()):
                lines.append(f"# TYPE {PREFIX}{name} histogram")
                for labels, (counts, total) in rows.items():
                    lines += print_histogram(name, labels, counts, total)
        return "".join(f"{line}\n" for line in lines)


def print_histogram(
    name: str, labels: str, counts: list[int], total: float
) -> list[str]:
    """Return the lines of a histogram."""
    lines, sum_so_far = [], 0
    for end, count in zip([*BUCKETS, None], counts):
        sum_so_far += count
        end = "+Inf" if end is None else f"{end:g}"
        lines.append(
            f'{PREFIX}{name}_bucket{{{labels},le="{end}"}} {sum_so_far}'
        )
    lines.append(f"{PREFIX}{name}_sum{{{labels}}} {total:g}")
    lines.append(f"{PREFIX}{name}_count{{{labels}}} {sum_so_far}")
    return lines


def print_labels(labels: dict[str, str]) -> str:
    r"""Return labels as Prometheus reads them.

    Example:
        >>> print_labels({"model_name": 'a"b', "status": "OK"})
        'model_name="a\\"b",status="OK"'
    """
    escape = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    return ",".join(f'{k}="{v.translate(escape)}"' for k, v in labels.items())
