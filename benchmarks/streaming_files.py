"""Part of benchmarks/streaming.py: files to logits and map on a GPU, against decoding them with all cores.

A JPEG, a tiled TIFF made from it, and a gigapixel TIFF tiled with copies of it; and one image shared by two processes.
"""

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import infsa
from infsa.streaming import open_source
from infsa.streaming.feed import cores
from infsa.streaming.memory import parse_bytes, show_bytes

TILE = 512  # of the TIFFs
BLOCK = 2048  # of an image that is only decoded, and of bands


def timed(
    call: Callable[[], Any], device: torch.device, runs: int, at_least: float = 1.0
) -> tuple[Any, dict[str, Any]]:
    """The result, the least seconds of several runs after a first one, and the most the GPU held in them.

    There are more runs if these take less than ``at_least`` seconds together.
    """
    call()
    seconds: list[float] = []
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    while len(seconds) < runs or sum(seconds) < at_least:
        wait(device)
        began = time.perf_counter()
        result = call()
        wait(device)
        seconds.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated(device) if cuda else None
    return result, {"seconds": min(seconds), "device_peak": peak}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def files(options: Any, keep: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """A row per file, model and type: seconds, those of decoding alone, and the memory of the GPU within its budget.

    ``keep`` is given the rows so far after each.
    """
    device = torch.device(options.device)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        for name, file in copies(Path(options.file), Path(folder), options.copies):
            source = open_source(file)
            megapixels = source.height * source.width / 1e6
            alone = min(decode(file) for _ in range(2))
            for shipped, dtype in ((True, torch.float32), (False, torch.bfloat16)):
                model = load(options, shipped, device, dtype)
                limit = {"device_memory": options.device_memory} if device.type == "cuda" else {}

                def run(file: Path = file, model: Any = model, limit: dict[str, Any] = limit) -> Any:
                    return infsa.stream(model, file, map=True, **limit)

                result, row = timed(run, device, options.runs)
                row |= {"image": name, "size": [source.width, source.height], "dtype": str(dtype)}
                row |= {"model": options.files_model if shipped else options.model, "decoding_alone": alone}
                row |= {"ratio": row["seconds"] / alone, "megapixels_per_second": megapixels / row["seconds"]}
                row |= {"seconds_per_megapixel": row["seconds"] / megapixels, "strategy": result.strategy}
                row |= {"plan": str(result.plan), "profile": result.profile.record()}
                if limit and row["device_peak"] is not None:
                    row["device_memory"] = parse_bytes(options.device_memory)
                rows.append(row)
                print(row, flush=True)
                keep({"cores": cores(), "rows": rows})
                del model, result
    return {"cores": cores(), "rows": rows}


def load(options: Any, shipped: bool, device: torch.device, dtype: torch.dtype) -> Any:
    """The shipped model, or the large one of random weights."""
    name = options.files_model if shipped else options.model
    torch.manual_seed(0)
    model = infsa.create_model(name, pretrained=shipped, dynamic_img_pad=True)
    return model.eval().to(device, dtype)


def copies(file: Path, folder: Path, count: int) -> Iterator[tuple[str, Path]]:
    """The file, a tiled TIFF of it, and one of so many copies along each side."""
    import pyvips

    yield file.suffix[1:].upper().replace("JPG", "JPEG"), file
    image = pyvips.Image.new_from_file(str(file)).copy_memory()
    tiled = {"tile": True, "tile_width": TILE, "tile_height": TILE, "compression": "jpeg", "Q": 90, "bigtiff": True}
    for name, made in (("tiled TIFF", image), (f"tiled TIFF, {count}² copies", image.replicate(count, count))):
        path = folder / f"{len(name)}.tif"
        made.tiffsave(str(path), **tiled)
        yield name, path
        path.unlink()


def decode(file: Path) -> float:
    """Seconds to read all pixels once, with a thread for every core where the format allows it."""
    source = open_source(file)
    began = time.perf_counter()
    source.restart()
    rows = range(0, source.height, BLOCK)
    boxes = [(top, left) for top in rows for left in (range(0, source.width, BLOCK) if not source.bands else [0])]

    def read(box: tuple[int, int]) -> None:
        top, left = box
        right = source.width if source.bands else min(left + BLOCK, source.width)
        source.read(top, left, min(top + BLOCK, source.height), right)

    with ThreadPoolExecutor(1 if source.sequential else cores()) as pool:
        list(pool.map(read, boxes))
    return time.perf_counter() - began


# Two processes that share an image


def shared(options: Any) -> dict[str, Any]:
    """One image of noise by one process and by two on the same device: seconds and how well they agree."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(part, (options, folder, free_port()), nprocs=2)  # type: ignore[no-untyped-call]
        found: list[dict[str, Any]] = [torch.load(Path(folder, f"{rank}.pt"), weights_only=True) for rank in (0, 1)]
    alone = found[0]["alone"]
    difference = max(float((one["logits"] - alone).norm() / alone.norm()) for one in found)
    seconds = {"one": found[0]["one"], "two": max(one["two"] for one in found)}
    return {"side": options.side, "model": options.model, "seconds": seconds, "relative_difference": difference}


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def part(rank: int, options: Any, folder: str, port: int) -> None:
    """What each of two processes does: the image alone first, then its share of it."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    device = torch.device(options.device)
    torch.manual_seed(0)
    model = infsa.create_model(options.model).eval().to(device, torch.bfloat16)
    pixels = torch.randint(0, 256, (options.side, options.side, 3), dtype=torch.uint8).numpy()
    found: dict[str, Any] = {}
    if rank == 0:
        result, row = timed(lambda: infsa.stream(model, pixels, tile=options.tile), device, options.runs)
        found |= {"alone": result.logits.float().cpu(), "one": row["seconds"]}
    dist.barrier()
    group = dist.group.WORLD
    runs = max(3, options.runs)  # the same number in both processes
    result, row = timed(lambda: infsa.stream(model, pixels, tile=options.tile, group=group), device, runs, 0.0)
    torch.save({**found, "logits": result.logits.float().cpu(), "two": row["seconds"]}, Path(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


def summary(found: dict[str, Any]) -> str:
    """What is judged, in short lines; behind a file the seconds of decoding alone."""
    lines = [f"{'run':<44}{'seconds':>9}{'ratio':>7}{'limit':>7}{'GPU peak':>11}"]
    for row in found.get("gpu", {}).get("rows", []):
        name = f"{row['run']} {row.get('where', '')} {row['dtype'][6:]}"
        lines += [line(name, row, row.get("limit"))]
    for row in found.get("files", {}).get("rows", []):
        model = row["model"].removeprefix("infvit_linear_").removesuffix("_patch16_224")
        name = f"{row['image']} {row['decoding_alone']:.2f}, {model} {row['dtype'][6:]}"
        lines += [line(name, row, 1.3)]
    if "shared" in found:
        seconds = found["shared"]["seconds"]
        lines.append(f"{'one process, two on the same device':<44}{seconds['one']:>9.3f}{seconds['two']:>9.3f}")
    return "\n".join(lines)


def line(name: str, row: dict[str, Any], limit: float | None) -> str:
    cells = ("" if value is None else f"{value:.2f}" for value in (row.get("ratio"), limit))
    peak = "" if row.get("device_peak") is None else show_bytes(row["device_peak"])
    return f"{name[:43]:<44}{row['seconds']:>9.3f}" + "".join(f"{cell:>7}" for cell in cells) + f"{peak:>11}"
