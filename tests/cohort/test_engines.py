"""The same table from this process, from several and from a Ray cluster; a killed worker loses no row."""

import os
import signal

import numpy as np
import pyarrow.parquet as pq
import pytest

from infsa.cohort import embed
from infsa.cohort.engines import InProcess
from infsa.cohort.run import Cohort
from tests.cohort.conftest import noise
from tests.cohort.test_rows import rows_of
from tests.models.helpers import small

OPTIONS = {"batch_size": 1}  # several units


@pytest.fixture(scope="module")
def expected(folder, model, tmp_path_factory):
    out = tmp_path_factory.mktemp("expected") / "a.parquet"
    embed(folder, model, out, **OPTIONS)
    return rows_of(out)


def check(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            if isinstance(value, list | float):
                np.testing.assert_allclose(one[name], value, atol=1e-6)
            else:
                assert one[name] == value, name


def workers_of(out):
    return {row["worker"] for row in rows_of(out.with_suffix(".timings.parquet"))}


def killer(parts, killed):
    """A callback that ends the worker whose rows came first, while it has another unit in hand."""

    def kill(at):
        if not killed:
            (part,) = parts.glob("[!._]*.parquet")
            killed.append(int(rows_of(part)[0]["worker"].rpartition(":")[2]))
            os.kill(killed[0], signal.SIGKILL)

    return kill


def test_two_processes_one_of_which_is_killed(folder, model, expected, tmp_path):
    out = tmp_path / "a.parquet"
    kill = killer(tmp_path / "a.parquet.parts", [])
    summary = embed(folder, model, out, devices=["cpu", "cpu"], progress=kill, **OPTIONS)
    assert (summary.rows, summary.failed) == (36, 6)
    check(rows_of(out), expected)
    assert len(workers_of(out)) >= 2
    assert not any(str(os.getpid()) in worker for worker in workers_of(out))


def test_an_image_that_kills_its_worker_is_a_row_with_the_reason(model, tmp_path, monkeypatch):
    """Its neighbours in the batch are computed."""
    for number in range(3):
        noise(16, 16, number).save(tmp_path / f"{number}.png")
    deaths = []

    class Dying(InProcess):
        def results(self, queue):
            while queue:
                unit = queue.popleft()
                deadly = any(work.item.path.endswith("1.png") for work in unit.works)
                deaths.extend([len(unit.works)] * deadly)
                yield unit, None if deadly else self.one(unit)

    monkeypatch.setattr(Cohort, "engine", lambda self, scratch: Dying(self.network, self.schema, scratch))
    embed(tmp_path, model, tmp_path / "a.parquet")
    errors = [row["error"] for row in rows_of(tmp_path / "a.parquet")]
    assert errors == [None, "the worker died of this image, twice", None]
    assert deaths == [3, 3, 1, 1]


def test_workers_that_cannot_start_end_the_run(folder, model, tmp_path, monkeypatch):
    monkeypatch.setattr("infsa.cohort.engines.sys.executable", "false")
    with pytest.raises(RuntimeError, match="ended 4 times right after starting, exit code 1"):
        embed(folder, model, tmp_path / "a.parquet", devices=["cpu", "cpu"])
    with pytest.raises(ValueError, match="give its name, file or folder, not the model"):
        embed(folder, small(), tmp_path / "a.parquet", devices=["cpu", "cpu"])


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="no cluster: Ray is missing (infsa[cluster])")
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield ray
    ray.shutdown()


def test_a_cluster_of_two_workers_one_of_which_is_killed(cluster, folder, model, expected, tmp_path):
    killed = []
    out = tmp_path / "a.parquet"
    kill = killer(tmp_path / "a.parquet.parts", killed)
    summary = embed(folder, model, out, ray="auto", progress=kill, **OPTIONS)
    assert (summary.rows, summary.failed, len(killed)) == (36, 6, 1)
    check(rows_of(out), expected)
    assert not any(str(os.getpid()) in worker for worker in workers_of(out))
    assert embed(folder, model, out, **OPTIONS).kept == 36
    assert pq.read_table(out).num_rows == 36
