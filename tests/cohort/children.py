"""Runs that die at a chosen moment, in processes that start quickly."""

import multiprocessing
import os
import signal

from infsa.cohort import embed

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.cohort.children"])


def dying(moment, sources, model, out, options):
    """Embed, and kill -9 just before a file would be put in its place for the ``moment``-th time."""
    replace, calls = os.replace, 0

    def counted(*names):
        nonlocal calls
        calls += 1
        if calls == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*names)

    os.replace = counted
    embed(sources, model, out, **options)


def run(moment, *arguments):
    """The exit code of a run that dies at a moment, or lives if there are fewer."""
    child = CONTEXT.Process(target=dying, args=(moment, *arguments))
    child.start()
    child.join()
    return child.exitcode
