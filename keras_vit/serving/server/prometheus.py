"""Metrics for Prometheus, with the names of TF Serving."""

import collections
import json
import math

PREFIX = ":tensorflow:serving:"
# Microseconds: 33 buckets from 10 us, each 1.8 times as long.
BUCKETS = {f"{end:g}": end for end in (10 * 1.8**i for i in range(33))}
BUCKETS["+Inf"] = math.inf


class Metrics:
    """Counters and histograms, by their names and labels."""

    def __init__(self):
        self._values = collections.defaultdict(collections.Counter)

    def count(self, name: str, number: int = 1, **labels: str):
        """Add to a counter, whose name ends in `_count`."""
        self._add(name, "", number, labels)

    def time(self, name: str, seconds: float, **labels: str):
        """Add a time to a histogram."""
        microseconds = seconds * 1e6
        for text, end in BUCKETS.items():
            more = {**labels, "le": text}
            self._add(name, "_bucket", int(microseconds <= end), more)
        self._add(name, "_sum", microseconds, labels)
        self._add(name, "_count", 1, labels)

    def _add(self, name, suffix, number, labels):
        pairs = (
            f"{key}={json.dumps(value, ensure_ascii=False)}"
            for key, value in labels.items()
        )
        self._values[name][f"{name}{suffix}{{{','.join(pairs)}}}"] += number

    def __str__(self):
        """Return the text that Prometheus reads.

        Example:
            >>> metrics = Metrics()
            >>> metrics.count("request_count", model_name="m", status="OK")
            >>> print(metrics)
            # TYPE :tensorflow:serving:request_count counter
            :tensorflow:serving:request_count{model_name="m",status="OK"} 1
        """
        lines = []
        for name, values in self._values.items():
            kind = "counter" if name.endswith("_count") else "histogram"
            lines.append(f"# TYPE {PREFIX}{name} {kind}")
            lines += [f"{PREFIX}{key} {value}" for key, value in values.items()]
        return "\n".join(lines)
