"""Batches from worker processes that end with the process they work for, and report errors as they were raised."""

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # Ctrl-C, and what schedulers send before a time limit


class Batches:
    """A DataLoader that can be iterated again and again.

    A stop signal sent to every process of a job does not reach its workers: it is for the process that trains, which
    needs its last batch. That process alone can end them, so none is left behind by an error or an interruption.

    Args:
        dataset: map-style.
        workers: processes that read; 0: this one does.
        options: for the DataLoader.
    """

    def __init__(self, dataset: Dataset[Any], workers: int = 0, **options: Any) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores
            init = obey_parent_only if workers else None
            self.loader = DataLoader(dataset, num_workers=workers, worker_init_fn=init, **options)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.loader
        except Exception as error:
            raised = as_raised(error)
            if raised is error:
                raise
            raise raised from error


def as_raised(error: Exception) -> Exception:
    """The error of a worker without the traceback that torch puts into its message; other errors as they are."""
    head, *lines = str(error).rstrip().splitlines() or [""]
    if not lines or "in DataLoader worker process" not in head:
        return error
    kind, _, message = lines[-1].partition(": ")
    return type(error)(message or kind)


def obey_parent_only(worker: int) -> None:
    """Make a worker ignore stop signals from anyone but the process that started it; ``worker_init_fn`` of a loader."""
    parent = multiprocessing.parent_process()
    if parent is None or not hasattr(signal, "sigwaitinfo"):  # macOS does not say who sent a signal
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    threading.Thread(target=_end_with, args=(parent.pid,), daemon=True).start()


def _end_with(parent: int | None) -> None:
    while signal.sigwaitinfo(STOP_SIGNALS).si_pid != parent:
        pass
    os._exit(0)
