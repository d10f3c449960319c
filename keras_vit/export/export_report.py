"""The report on an export, as a Markdown table and as JSON."""

import dataclasses
import json
import math
import pathlib
from typing import Any

from keras_vit.export.agreement import Agreement
from keras_vit.export.latency import Latency
from keras_vit.tables import format_table
from keras_vit.version import __version__


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """The files of an export, and their comparison with the model.

    Args:
        name: Name of the model on servers.
        version: A number from 1.
        parameters: Number of parameters of the model.
        agreements: The comparison of each file or folder.
        latencies: The measured latencies; empty if they were not measured.
        measurements: Other measurements, dataclasses that print as a
            sentence.
    """

    name: str
    version: int
    parameters: int
    agreements: tuple[Agreement, ...]
    latencies: tuple[Latency, ...] = ()
    measurements: tuple[Any, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """The faults of all files."""
        return tuple(
            f"{a.kind}: {fault}" for a in self.agreements for fault in a.faults
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all files."""
        return tuple(
            f"{a.kind}: {text}" for a in self.agreements for text in a.warnings
        )

    def __str__(self):
        """Return the report as Markdown."""
        paragraphs = [
            f"{self.name}, version {self.version}: {self.parameters:,} "
            "parameters, compared with the Keras model on "
            f"{_count(self.agreements[0].num_images, 'image')}.",
            self._table(),
        ]
        if self.latencies:
            batch_size = self.latencies[0].batch_size
            paragraphs.append(
                f"Latency of {_count(batch_size, 'image')}, relative to Keras' "
                "`predict_on_batch` with as many threads."
            )
        notes = [*self.faults, *self.warnings, *map(str, self.measurements)]
        notes += dict.fromkeys(
            f"latency of {latency.name}: {latency.reason}"
            for latency in self.latencies
            if latency.reason
        )
        if notes:
            paragraphs.append("\n".join(f"- {note}" for note in notes))
        return "\n\n".join(paragraphs)

    def _table(self):
        """Return a row for each file, with a latency for each thread count."""
        threads = sorted({latency.threads for latency in self.latencies})
        latencies = {(x.name, x.threads): x for x in self.latencies}
        columns = {
            "format": lambda a: a.kind,
            "MiB": lambda a: f"{a.num_bytes / 2**20:.2f}",
            "largest difference": lambda a: f"{a.max_difference:.1e}",
            "cosine": lambda a: f"{a.cosine:.6f}",
            "same class": lambda a: f"{a.top1_agreement:.2%}",
            **{
                f"latency, {_count(number, 'thread')}": (
                    lambda a, number=number: _show(
                        latencies.get((a.kind, number))
                    )
                )
                for number in threads
            },
            "verdict": _judge,
        }
        rows = [[show(a) for show in columns.values()] for a in self.agreements]
        return format_table(columns, rows)

    def write(self, folder: pathlib.Path):
        """Write `report.json` and `report.md` into a new folder."""
        folder.mkdir(parents=True)
        content = {
            "keras_vit": __version__,
            **dataclasses.asdict(self),
            "faults": self.faults,
            "warnings": self.warnings,
        }
        # JSON has neither NaN nor infinity.
        content = json.loads(json.dumps(content), parse_constant=lambda _: None)
        (folder / "report.json").write_text(
            json.dumps(content, indent=2) + "\n", encoding="utf-8"
        )
        (folder / "report.md").write_text(f"{self}\n", encoding="utf-8")


def _judge(agreement):
    if not math.isfinite(agreement.max_difference):
        return "not finite"
    if agreement.faults:
        return "differs"
    return "see below" if agreement.warnings else "ok"


def _count(number, noun):
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _show(latency):
    if latency is None or latency.ratio is None:
        return "-"
    return f"{latency.ratio:.2f} ({latency.milliseconds:.1f} ms)"
