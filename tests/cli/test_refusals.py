"""What a command cannot do it says in one line; wrong usage prints nothing else and leaves every file alone."""

import shlex

import pytest
from PIL import Image

from infsa.models import save_weights
from tests.cli.test_ablate import SMALL
from tests.cli.test_cli import run
from tests.cli.test_quality import FEW
from tests.models.helpers import small

BEFORE = {  # what stands before the words of a case
    "ablate": [*SMALL, "--out", "out"],
    "bench": ["--device", "cpu", "--out", "out.json"],
    "embed": ["photo.png", "--out", "out.parquet"],
    "explain": ["photo.png", "-m", "model", "--out", "out"],
    "predict": ["photo.png"],
    "quality": ["-m", "model", *FEW, "--out", "out"],
}
USAGE = {  # exit code 2: what stands on the command line, and what the line says of it
    "dream": "'dream'",
    "demo --gamma 1.5": "got 1.5",
    "demo --gamma 0": "got 0.0",
    "demo --colour": "--colour",
    "demo --seed -1": "-1",
    "ablate --grid colour=1,2": "'colour'",
    "ablate --grid gamma": "'gamma'",
    "ablate --grid gamma=": "'gamma='",
    "ablate --seeds 0": "got 0",
    "ablate --timed -1": "got -1",
    "ablate --grid epochs=0,1": "epochs",
    "ablate --recipe none": "'none'",
    "bench --preset table2": "'table2'",
    "bench --mechanism sparse": "'sparse'",
    "bench --resolution 100": "multiples of the patch 16, got (100, 100)",
    "bench --resolution big": "'big'",
    "bench --config 4x64": "'4x64'",
    "bench --config 4L-7H": "must divide the width 1024, got 7",
    "bench --mode sleep": "'sleep'",
    "bench --dtype int8": "'int8'",
    "bench --compile maximum": "'maximum'",
    "bench --quick --batch-size 2": "--batch-size cannot be combined with a preset",
    "bench --seconds 0": "seconds must be positive, got 0.0",
    "bench --device tpu": "'tpu'",
    "bench --max-resolution --energy": "limit row has no energy",
    "bench --max-resolution --resolution 64x96": "starts from a square, got (64, 96)",
    "bench --max-resolution --resolution 64 --resolution 96": "starts at one --resolution",
    "bench --memory-cap 1": "need --max-resolution",
    "bench --time-limit 1 --preset table1": "need --max-resolution",
    "bench --max-resolution --memory-cap 0": "--memory-cap must be positive, got '0'",
    "bench --max-resolution --memory-cap 40GB!": "--memory-cap must be a size such as 2GiB",
    "bench --budget -1": "budget must be 0 or more seconds, got -1.0",
    "embed --resolution 0": "--resolution must be crop, model, native or a number of pixels, got '0'",
    "embed --memory x": "memory must be a size",
    "embed --devices cuda:77,cpu": "cuda:77",
    "embed --workers 0": "--workers must be 1 or more, got 0",
    "embed --ray auto --workers 2": "--workers cannot be combined with --ray",
    "embed --ray auto --devices cpu,cpu": "--devices must be cpu or cuda with --ray",
    "explain --method gaze": "'gaze'",
    "explain --resolution big": "'big'",
    "explain --device abacus": "'abacus'",
    "predict --top-k 0": "must be 1 or more, got 0",
    "predict --batch-size -1": "must be 1 or more, got -1",
    "predict --readers 0": "must be 1 or more, got 0",
    "predict --resolution huge": "crop, model, native or a number of pixels, got 'huge'",
    "predict --resolution 0": "got '0'",
    "predict --format xml": "csv or jsonl, got 'xml'",
    "predict --format csv --json": "contradict",
    "predict --out result.txt": ".csv or .jsonl",
    "predict --out there": "--out must end in .csv or .jsonl",
    "predict --out there --format csv": "must be a file",
    "predict --out nowhere/new.csv": "no folder nowhere",
    "predict --out photo.png --format csv": "overwrite the image",
    "predict --maps photo.png": "must be a folder",
    "predict --device tpu9": "tpu9",
    "predict --batch 3": "--batch",
    "quality --fill grey": "'grey'",
    "quality --method gaze": "'gaze'",
    "quality --normalise log": "'log'",
    "quality --score loss": "'loss'",
    "quality --limit 0": "got 0",
}
FAILED = {  # exit code 1
    "demo --out photo.png": "photo.png must be a folder",
    "explain -m nowhere.safetensors": "nowhere.safetensors",
    "explain --out photo.png": "photo.png must be a folder",
    "explain --layer 9": "got 9",
    "explain --head 7": "got 7",
    "predict -m nowhere": "nowhere",
    "predict -m model/config.json": "safetensors",
    "quality --data photos": "'photos'",
    "quality --score logit": "normalise='none'",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to work in with a model, a picture and an empty folder."""
    monkeypatch.chdir(tmp_path)
    save_weights(small(num_classes=10), tmp_path / "model")
    Image.new("RGB", (90, 30), "red").save("photo.png")
    (tmp_path / "there").mkdir()
    return tmp_path


def contents(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("line", [*USAGE, *FAILED])
def test_one_line(line, here, monkeypatch, capsys):
    before, (command, *words) = contents(here), shlex.split(line)
    code, out, err = run(monkeypatch, capsys, command, *BEFORE.get(command, []), *words)
    assert code == (2 if line in USAGE else 1), err
    assert (USAGE | FAILED)[line] in err
    assert err.startswith("infsa: ")
    assert err.count("\n") == 1
    if line in USAGE:
        assert out == ""
        assert contents(here) == before
    assert before.items() <= contents(here).items()
