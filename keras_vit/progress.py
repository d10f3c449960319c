"""The progress bar of work that takes a while, times and large numbers."""

import datetime
import math
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

SECONDS_BETWEEN_DRAWINGS = 0.1
SECONDS_BETWEEN_LINES = 30


class ProgressBar:
    """Shows how much of some work is done, and how long the rest will take.

    On a terminal, this is a bar; elsewhere, such as in a log file, it is a line
    from time to time and one at the end. (`keras.utils.Progbar` writes colours
    and control characters into files as well.)

    Args:
        title: What is being done.
        unit: What is counted, such as "images".
        total: How much there is to do; None if that is not known.
        stream: Stream to write to. Default: the standard output.
        clock: Returns the time in seconds, such as `time.monotonic`.
        has_rate: Whether to show how much is done in a second.

    Example:
        >>> with ProgressBar("Reading", "images", 3) as bar:
        ...     bar.update(1)
        ...     bar.update(3)
        Reading: 3/3 images
    """

    def __init__(
        self,
        title: str,
        unit: str,
        total: float | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        has_rate: bool = False,
    ):
        self.title = title
        self.unit = unit
        self.total = total
        self.stream = stream or sys.stdout
        self.clock = clock
        self.has_rate = has_rate
        self._is_terminal = self.stream.isatty()
        # A terminal shows the first call; a log shows only longer work.
        self._shown = -math.inf if self._is_terminal else clock()
        self._pause = (
            SECONDS_BETWEEN_DRAWINGS
            if self._is_terminal
            else SECONDS_BETWEEN_LINES
        )
        self._first = None  # Time and amount of the first call.
        self._done = 0

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, kind, error, traceback):
        if error is None:
            self._show()
        if self._is_terminal:
            self.stream.write("\n")
            self.stream.flush()

    def update(self, done: float, total: float | None = None):
        """Show that so much is done, if it is time to.

        Args:
            done: The amount, in units.
            total: The total, if it was not known before.
        """
        self.total = self.total if total is None else total
        self._done = done
        now = self.clock()
        if self._first is None:
            self._first = now, done
        if now - self._shown >= self._pause:
            self._shown = now
            self._show()

    def _show(self):
        amounts = [x for x in (self._done, self.total) if x is not None]
        share = "/".join(
            f"{x:,.1f}" if isinstance(x, float) else f"{x:,}" for x in amounts
        )
        parts = [f"{share} {self.unit}", *self._pace()]
        if not self._is_terminal:
            text = f"{self.title}: {', '.join(parts)}"
            print(text, file=self.stream, flush=True)
            return
        if self.total:
            parts.insert(0, draw_bar(min(self._done / self.total, 1)))
        draw_line(self.stream, [self.title, *parts])

    def _pace(self):
        """Return a list of the rate and the time that the rest takes.

        The work before the first call is left out: it may be compiling, or an
        earlier part of a download.
        """
        start, before = self._first or (0, 0)
        seconds, found = self.clock() - start, []
        if self._done <= before or not seconds:
            return found
        rate = (self._done - before) / seconds
        if self.has_rate:
            digits = 0 if rate >= 10 else 2
            found.append(f"{rate:,.{digits}f} {self.unit} a second")
        if self.total and self._done < self.total:
            left = (self.total - self._done) / rate
            found.append(f"{format_seconds(left)} left")
        return found


def draw_line(stream: TextIO, parts: list[str]):
    """Draw a line of a terminal over the last one, as many parts as fit.

    Args:
        stream: The terminal.
        parts: The parts of the line, the most important first.
    """
    columns = shutil.get_terminal_size().columns - 1
    line = parts[0]
    for part in parts[1:]:
        if len(line) + 2 + len(part) > columns:
            break
        line += f"  {part}"
    stream.write("\r" + line[:columns].ljust(columns))
    stream.flush()


def draw_bar(share: float, width: int = 20) -> str:
    """Return a progress bar.

    Example:
        >>> draw_bar(0.5, width=10)
        '[====>.....]'
    """
    done = int(share * width)
    head = ">" if 0 < done < width else "=" * (done > 0)
    return f"[{'=' * (done - 1)}{head}{'.' * (width - done)}]"


def format_seconds(seconds: float) -> str:
    """Return a time as hours, minutes and seconds.

    Example:
        >>> format_seconds(3725.4)
        '1:02:05'
    """
    return str(datetime.timedelta(seconds=round(seconds)))


SI_PREFIXES = "kMGT"


def scale(number: float) -> str:
    """Return a number with three digits and k, M, G or T.

    Example:
        >>> scale(85_800_000), scale(999_999), scale(12)
        ('85.8 M', '1.00 M', '12 ')
    """
    if number < 1000:
        return f"{number:.0f} "
    for prefix in SI_PREFIXES:
        number /= 1000
        if number < 999.5 or prefix == SI_PREFIXES[-1]:
            break
    decimals = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{decimals}f} {prefix}"
