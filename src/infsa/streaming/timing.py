"""Where the time of a stream goes: what its main thread waited for, and how long the readers were busy.

Only the host's clock is read. A GPU is never stopped to be timed: what the host waits for it counts as computing.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STAGES = ("disk", "decoding", "copying", "computing")
_thread = threading.local()


@contextmanager
def from_disk() -> Iterator[None]:
    """Time spent here is the disk's, not the decoder's, if a reader runs it."""
    began = time.perf_counter()
    try:
        yield
    finally:
        _thread.disk = getattr(_thread, "disk", 0.0) + time.perf_counter() - began


class Profile:
    """The clock of one stream.

    ``waited`` says for what the main thread waited, in seconds that add up to ``seconds``; ``busy`` how long reader
    threads worked, all together. Readers whose library opens the file itself (JPEG, PNG, slides, Zarr) count as
    decoding.

    Example:
        >>> result = infsa.stream(model, "photo.jpg", tile=64)
        >>> sorted(result.profile.waited)
        ['computing', 'copying', 'decoding', 'disk']
    """

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.ended: float | None = None
        self.megapixels = 0.0  # of all tiles of all passes
        self.busy = {"disk": 0.0, "decoding": 0.0}
        self._waits = {"disk": 0.0, "reading": 0.0, "copying": 0.0}
        self._lock = threading.Lock()

    @contextmanager
    def waiting(self, stage: str) -> Iterator[None]:
        """The main thread waits for ``"reading"`` (disk and decoding), ``"disk"`` or ``"copying"``."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._waits[stage] += time.perf_counter() - began

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A reader thread works on a window."""
        began, _thread.disk = time.perf_counter(), 0.0
        try:
            yield
        finally:
            seconds, disk = time.perf_counter() - began, _thread.disk
            with self._lock:
                self.busy["disk"] += disk
                self.busy["decoding"] += seconds - disk

    def stop(self) -> None:
        """The stream is done."""
        self.ended = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the stream began, until it ended."""
        return (self.ended or time.perf_counter()) - self.began

    @property
    def rate(self) -> float:
        """Megapixels per second, each counted in every pass."""
        return self.megapixels / max(self.seconds, 1e-9)

    @property
    def waited(self) -> dict[str, float]:
        """Seconds of the main thread by stage; waits for readers are split as their work is."""
        disk = self.busy["disk"] / max(sum(self.busy.values()), 1e-12)
        reading = self._waits["reading"]
        found = {
            "disk": self._waits["disk"] + reading * disk,
            "decoding": reading * (1 - disk),
            "copying": self._waits["copying"],
        }
        return {**found, "computing": max(0.0, self.seconds - sum(found.values()))}

    @property
    def slowest(self) -> str:
        """The stage that the stream waited for most."""
        waited = self.waited
        return max(STAGES, key=waited.__getitem__)

    def table(self) -> str:
        """The same as text."""
        return table(self.record())

    def record(self) -> dict[str, Any]:
        """The same as plain data."""
        facts = {"seconds": self.seconds, "megapixels": self.megapixels, "megapixels_per_second": self.rate}
        return {**facts, "waited": self.waited, "busy": dict(self.busy)}


def table(record: dict[str, Any]) -> str:
    """What :meth:`Profile.record` gives, as text."""
    total = max(record["seconds"], 1e-9)
    lines = [f"{'waiting for':<12}{'seconds':>10}{'share':>8}{'threads busy':>15}"]
    for stage, seconds in record["waited"].items():
        busy = f"{record['busy'][stage]:.2f} s" if stage in record["busy"] else ""
        lines.append(f"{stage:<12}{seconds:>10.2f}{seconds / total:>8.1%}{busy:>15}".rstrip())
    rate = f"{record['megapixels_per_second']:.1f} Mpx/s, each pixel counted in every pass"
    return "\n".join([*lines, f"{'all':<12}{total:>10.2f}{1:>8.1%}   {rate}"])
