"""Where units are computed: in this process, in processes of their own, or in the tasks of a Ray cluster.

An engine takes units from a queue and gives them back with the table of their rows, or with None if the worker died.
"""

import contextlib
import functools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from ..streaming.readers import needed
from .compute import Computer
from .network import Network, open_model
from .plan import Unit
from .settings import Settings
from .table import as_table, schema_of

Results = Iterator[tuple[Unit, Any]]
STARTS = 3  # of a worker that dies before it is ready
AHEAD = 2  # units per slot of a cluster that are handed out


class InProcess:
    """Computes here; the next images are read while the model runs."""

    def __init__(self, network: Network, schema: Any, scratch: Path | None) -> None:
        self.compute, self.schema, self.tasks = Computer(network, scratch), schema, network.tasks

    def results(self, queue: deque[Unit]) -> Results:
        """Units with their tables."""
        units = iter(lambda: queue.popleft() if queue else None, None)
        for unit, rows in self.compute(units):
            yield unit, as_table(rows, self.schema, self.tasks)

    def one(self, unit: Unit) -> Any:
        """The table of one unit."""
        ((_, rows),) = self.compute([unit])
        return as_table(rows, self.schema, self.tasks)


@functools.cache
def build(model: str, settings: Settings, device: str, scratch: str | None) -> InProcess:
    """What a worker computes with; it stays with the process."""
    warnings.filterwarnings("ignore", category=UserWarning)  # of decoders, about single files
    network = Network(open_model(model, device), settings)
    return InProcess(network, schema_of(network, {}), None if scratch is None else Path(scratch))


class Processes:
    """One process per device; one that dies is started again, and the unit that it had comes back.

    Args:
        model: a name or a path that every process can open.
        settings: see :class:`Settings`.
        devices: one for each process, such as ``["cuda:0", "cuda:1"]``.
        scratch: see :class:`Computer`.
    """

    def __init__(self, model: str, settings: Settings, devices: list[str], scratch: Path | None) -> None:
        self.devices = devices
        threads = max(1, torch.get_num_threads() // len(devices))
        self.arguments = (model, settings, None if scratch is None else str(scratch), threads)

    def results(self, queue: deque[Unit]) -> Results:
        """Units with their tables, in the order in which they are done."""
        workers = [_Worker(device, self.arguments) for device in self.devices[: max(1, len(queue))]]
        try:
            while queue or any(worker.unit for worker in workers):
                for worker in workers:
                    if queue and worker.unit is None:
                        worker.give(queue.popleft())
                ready = wait([worker.pipe for worker in workers if worker.unit is not None])
                for worker in workers:
                    if worker.pipe in ready and (done := worker.take()) is not None:
                        if queue and done[1] is not None:
                            worker.give(queue.popleft())  # and then write what it did before
                        yield done
        finally:
            for worker in workers:
                worker.end()


class _Worker:
    """A process, our end of its pipe, and the unit that it works on."""

    def __init__(self, device: str, arguments: tuple[Any, ...]) -> None:
        self.device, self.arguments = device, arguments
        self.unit: Unit | None = None
        self.starts = 0  # without having been ready once
        self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-c", f"from {__name__} import serve; serve({theirs.fileno()})"]
        path = os.pathsep.join(filter(None, sys.path))  # of a script that need not be importable
        self.process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path}
        )
        theirs.close()
        self.pipe = Connection(ours.detach())
        self.starts += 1
        self._send((self.device, *self.arguments))

    def _send(self, value: Any) -> None:
        with contextlib.suppress(OSError):  # a process that is gone is noticed when its answer is read
            self.pipe.send(value)

    def give(self, unit: Unit) -> None:
        """Hand out a unit."""
        self.unit = unit
        self._send(unit)

    def take(self) -> tuple[Unit, Any] | None:
        """The unit with its table, or with None if the process died; None if it has only said that it is ready."""
        unit = self.unit
        assert unit is not None
        try:
            found = self.pipe.recv()
        except (EOFError, OSError):
            self.end()
            if self.starts > STARTS:
                code = self.process.returncode
                raise RuntimeError(
                    f"a worker on {self.device} ended {self.starts} times right after starting, exit code {code}"
                ) from None
            self._start()
            found = None
        if isinstance(found, str):
            raise RuntimeError(found)
        if found is True:
            self.starts = 0
            return None
        self.unit = None
        return unit, found

    def end(self) -> None:
        """Stop the process at once; nothing but the unit in hand is lost."""
        self.process.terminate()
        self.process.wait()
        self.pipe.close()


def serve(descriptor: int) -> None:
    """The life of a worker: units in, tables out, until the parent ends it or is gone itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    threading.Thread(target=_leave_with_the_parent, args=(descriptor,), daemon=True).start()
    pipe = Connection(descriptor)
    device, model, settings, scratch, threads = pipe.recv()
    torch.set_num_threads(threads)
    try:
        engine = build(model, settings, device, scratch)
        pipe.send(True)
        while True:
            pipe.send(engine.one(pipe.recv()))
    except EOFError:
        return
    except Exception as error:  # told to the parent, who stops the run with it
        pipe.send(f"{type(error).__name__}: {' '.join(str(error).split())}")


def _leave_with_the_parent(descriptor: int) -> None:
    """End this process when the other end of its pipe is closed, however that comes about."""
    hung_up = select.poll()
    hung_up.register(descriptor, 0)
    hung_up.poll()
    os._exit(1)


class RayTasks:
    """Tasks of a Ray cluster, which schedules them, retries them and carries their tables.

    Every node must see images and model under the same paths.

    Args:
        model: a name or a path that every node can open.
        settings: see :class:`Settings`.
        address: of the cluster, or ``"auto"``; one that this process is connected to already is used as it is.
        device: ``"cpu"``, or ``"cuda"`` for a GPU per task.
    """

    def __init__(self, model: str, settings: Settings, address: str, device: str) -> None:
        self.ray = needed("ray", "Ray", "a cluster", extra="cluster")
        if not self.ray.is_initialized():
            try:
                self.ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            except Exception as error:  # Ray raises several kinds
                raise ConnectionError(f"no Ray cluster at {address!r}: {' '.join(str(error).split())[:300]}") from error
        unit = "GPU" if device.startswith("cuda") else "CPU"
        self.slots = int(self.ray.cluster_resources().get(unit, 0))
        if not self.slots:
            raise ValueError(f"the Ray cluster has no {unit}, got device={device!r}")
        task = self.ray.remote(_task).options(**({"num_gpus": 1} if unit == "GPU" else {"num_cpus": 1}))
        self.submit = functools.partial(task.remote, model, settings, device)

    def results(self, queue: deque[Unit]) -> Results:
        """Units with their tables, in the order in which they are done."""
        errors = self.ray.exceptions
        running: dict[Any, Unit] = {}
        try:
            while queue or running:
                while queue and len(running) < AHEAD * self.slots:
                    unit = queue.popleft()
                    running[self.submit(unit)] = unit
                (done,), _ = self.ray.wait(list(running))
                unit = running.pop(done)
                try:
                    yield unit, self.ray.get(done)
                except (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError):
                    yield unit, None
                except errors.RayTaskError as error:
                    raise RuntimeError(f"{type(error.cause).__name__}: {error.cause}") from error
        finally:
            for task in running:
                self.ray.cancel(task, force=True)


def _task(model: str, settings: Settings, device: str, unit: Unit) -> Any:
    """A unit on a node of the cluster."""
    return build(model, settings, device, None).one(unit)
