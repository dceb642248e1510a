"""The parent's side of the worker: ask, wait no longer than allowed, notice death, start again."""

import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

COMMAND = (sys.executable, "-m", "infsa.bench.worker")
START = 120.0  # seconds that a start may take


class Child:
    """A worker process that is started when it is asked something, and again after it died."""

    def __init__(self, device: str, cap: int | None = None, command: tuple[str, ...] = COMMAND) -> None:
        self.options = {"device": device, "cap": cap}
        self.command = command
        self.process: subprocess.Popen[str] | None = None
        self.starts = 0

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ask(self, job: dict[str, Any], limit: float, meanwhile: Callable[[], object] | None = None) -> dict[str, Any]:
        """The worker's answer; ``{"failed": why, "ran_out": what, "died": True}`` if it died or took too long.

        ``meanwhile`` is called while the worker works.
        """
        if self.process is None and not (started := self._start()).get("ready"):
            return started
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return self._died()
        if meanwhile is not None:
            meanwhile()
        answer = self._answer(limit)
        if answer.get("broken"):
            self.stop()
        return answer

    def _answer(self, limit: float) -> dict[str, Any]:
        try:
            line = self.answers.get(timeout=limit)
        except queue.Empty:
            self.stop()
            return {"failed": f"stopped after {limit:.0f} s", "ran_out": "time", "died": True}
        answer: dict[str, Any] = self._died() if line is None else json.loads(line)
        return answer

    def _start(self) -> dict[str, Any]:
        """Start the worker and wait until it is ready, so that limits hold for jobs alone."""
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,  # Ctrl-C is for the parent alone
        )
        self.starts += 1
        self.answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_forward, args=(self.process.stdout, self.answers), daemon=True).start()
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(self.options) + "\n")
        try:
            self.process.stdin.flush()
        except BrokenPipeError:
            return self._died()
        return self._answer(START)

    def _died(self) -> dict[str, Any]:
        assert self.process is not None
        code = self.process.wait()
        self.errors.seek(0)
        words = self.errors.read()
        last = (words.strip().splitlines() or [""])[-1][:200]
        self.stop()
        if code < 0:
            name = signal.Signals(-code).name
            starved = code == -signal.SIGKILL or "bad_alloc" in words
            reason = f"the process died of {name}" + (f": {last}" if last else "")
            return {"failed": reason, "ran_out": "host memory" if starved else None, "died": True}
        return {"failed": f"the process left with code {code}: {last}", "ran_out": None, "died": True}

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            if stream is not None:
                with suppress(BrokenPipeError):  # a line that never reached the process
                    stream.close()
        self.process = None


def _forward(stream: IO[str] | None, answers: "queue.Queue[str | None]") -> None:
    assert stream is not None
    with suppress(ValueError):  # closed while reading
        for line in stream:
            answers.put(line)
    answers.put(None)
