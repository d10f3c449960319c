"""What was found out about an export, to be read and to be kept."""

import dataclasses
import json
import math
import pathlib

from keras_vit.export.agreement import Agreement
from keras_vit.export.latency import Latency
from keras_vit.version import __version__


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """What an export has written, and how it compares with the model.

    Args:
        name: What servers call the model.
        version: A number from 1.
        parameters: Of the model.
        agreements: One for each file or folder.
        latencies: How fast they are; empty if that was not measured.
    """

    name: str
    version: int
    parameters: int
    agreements: tuple[Agreement, ...]
    latencies: tuple[Latency, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """What is outside the tolerance, of all."""
        return tuple(
            f"{a.kind}: {fault}" for a in self.agreements for fault in a.faults
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is worth knowing, of all."""
        return tuple(
            f"{a.kind}: {text}" for a in self.agreements for text in a.warnings
        )

    def __str__(self):
        """Return the report as Markdown."""
        columns = [
            "format",
            "MiB",
            "largest difference",
            "cosine",
            "same class",
            "verdict",
        ]
        threads = sorted({latency.threads for latency in self.latencies})
        columns[5:5] = [f"time, {_count(n, 'thread')}" for n in threads]
        times = {
            (latency.name, latency.threads): latency
            for latency in self.latencies
        }
        rows = [
            [
                a.kind,
                f"{a.num_bytes / 2**20:.2f}",
                f"{a.max_difference:.1e}",
                f"{a.cosine:.6f}",
                f"{a.top1_agreement:.2%}",
                *(_show_time(times.get((a.kind, n))) for n in threads),
                _judge(a),
            ]
            for a in self.agreements
        ]
        lines = [
            f"{self.name}, version {self.version}: {self.parameters:,} "
            "parameters, compared with the Keras model on "
            f"{_count(self.agreements[0].num_images, 'image')}.",
            "",
            _line(columns),
            _line(["---"] * len(columns)),
            *map(_line, rows),
        ]
        if threads:
            lines += [
                "",
                f"Times are for {_count(self.latencies[0].batch_size, 'image')}"
                ", in parts of what Keras' `predict_on_batch` takes with as "
                "many threads.",
            ]
        notes = [*self.faults, *self.warnings]
        notes += {
            f"time of {latency.name}: {latency.reason}": None
            for latency in self.latencies
            if latency.reason
        }
        if notes:
            lines += ["", *(f"- {note}" for note in notes)]
        return "\n".join(lines)

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


def _line(cells):
    return f"| {' | '.join(cells)} |"


def _judge(agreement):
    if not math.isfinite(agreement.max_difference):
        return "not finite"
    if agreement.faults:
        return "differs"
    return "see below" if agreement.warnings else "ok"


def _count(number, noun):
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _show_time(latency):
    if latency is None or latency.ratio is None:
        return "-"
    return f"{latency.ratio:.2f} ({latency.milliseconds:.1f} ms)"
