"""Streaming measured: bytes, seconds per megapixel, resident memory, and what the intervals of estimates are worth.

    python benchmarks/streaming.py image orion-18000.jpg --memory 2GiB --scratch /scratch   one image, command line
    python benchmarks/streaming.py strategies orion-18000.jpg --side 3072                   a crop, every strategy
    python benchmarks/streaming.py coverage orion-18000.jpg --subsets 200                   90 % intervals
    python benchmarks/streaming.py gpu orion-18000.jpg                     9216² in memory and streamed, files, shared
    python benchmarks/streaming.py compare orion-18000.jpg --against OLD/src                this code and other code

Every section writes its own part of results/streaming.json (``gpu``: results/streaming-gpu.json) and leaves the others
as they are. Memory is the peak resident set that the system counted for a process of its own, or the GPU allocator's.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pages.marks import write_tables
from PIL import Image
from streaming_files import files, shared, summary, timed

import infsa
from infsa.files import read_json, write_json
from infsa.provenance import provenance
from infsa.streaming.memory import parse_bytes, show_bytes

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
MODEL = "infvit_linear_tiny"
COMMAND = [sys.executable, "-c", "from infsa.cli import main; main()", "stream"]


def main() -> None:
    options = arguments()
    path = Path(options.out or RESULTS / ("streaming-gpu.json" if options.section == "gpu" else "streaming.json"))
    jobs: dict[str, Any] = {options.section: options.run}
    if options.section == "gpu":
        jobs |= {"files": partial(files, keep=partial(keep, path, "files", options)), "shared": shared}
        jobs = {name: jobs[name] for name in options.only if name != "files" or options.file}
    found = {name: keep(path, name, options, job(options)) for name, job in jobs.items()}
    if options.out is None:
        draw()
    print(summary(found) if options.section == "gpu" else json.dumps(found[options.section], indent=1))


def keep(path: Path, name: str, options: argparse.Namespace, section: dict[str, Any]) -> dict[str, Any]:
    """Write a section, or what there is of it, beside the others."""
    section = {**section, "provenance": provenance(getattr(options, "device", None))}
    write_json({**(read_json(path) if path.exists() else {}), name: section}, path)
    return section


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = parser.add_subparsers(dest="section", required=True)
    for run in (image, strategies, coverage, gpu, compare):
        name = run.__name__
        section = sections.add_parser(name)
        section.set_defaults(run=run)
        section.add_argument("--out", help="another file for the result")
        section.add_argument("--tile", type=int, default={"coverage": 64, "gpu": None}.get(name, 1024))
        section.add_argument("file", nargs="?" if name == "gpu" else None)
        if name == "image":
            section.add_argument("--memory", default="2GiB")
            section.add_argument("--scratch")
        else:
            section.add_argument("--side", type=int, default={"coverage": 640, "gpu": 9216}.get(name, 3072))
        if name == "compare":
            section.add_argument("--against", required=True, help="the src folder of the other code")
            section.add_argument("--rounds", type=int, default=3)
            section.add_argument("--whole", action="store_true", help="the whole file too, once by each code")
        if name == "coverage":
            section.add_argument("--subsets", type=int, default=200)
            section.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.25])
        if name == "gpu":
            parts = ["gpu", "files", "shared"]
            section.add_argument("--only", nargs="+", choices=parts, default=parts, help="parts to run")
            section.add_argument("--model", default="infvit_linear_4l64h_patch16_224")
            section.add_argument("--files-model", default=MODEL, help="the other model for files, with its weights")
            section.add_argument("--device-memory", default="16GiB", help="the budget for files")
            section.add_argument("--copies", type=int, default=2, help="of the image along each side of the large TIFF")
            section.add_argument("--runs", type=int, default=3)
            section.add_argument("--scratch", help="folder for the TIFFs")
        if name in ("coverage", "gpu"):
            section.add_argument("--device", default="cuda" if name == "gpu" else "cpu")
    return parser.parse_args()


# One image through the command line, in a process of its own


def measured(*arguments: str) -> dict[str, Any]:
    """What ``infsa stream --json`` prints, with the peak memory that the system saw."""
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen([*COMMAND, *arguments, "--json"], stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"infsa stream failed: {' '.join(arguments)}")
        out.seek(0)
        record: dict[str, Any] = json.load(out)
    record["resident_peak"] = usage.ru_maxrss * 1024
    record["processor_seconds"] = usage.ru_utime + usage.ru_stime
    return record


def image(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        files = {"map": f"{folder}/map.tif", "code": f"{folder}/code.safetensors"}
        given = [options.file, "--memory", options.memory, "--tile", str(options.tile)]
        given += ["--map", files["map"], "--code", files["code"]]
        given += ["--scratch", options.scratch] if options.scratch else []
        record = measured(*given)
        sizes = {f"{name}_bytes": Path(file).stat().st_size for name, file in files.items()}
    record["image"] = Path(options.file).name
    for name in ("logits", "map", "code"):
        del record[name]
    spilled = 0 if record["strategy"] == "recompute" else tokens_bytes(record["size"])
    return {**record, **sizes, "memory": options.memory, "tile": options.tile, "tokens_bytes": spilled}


def tokens_bytes(size: list[int]) -> int:
    model = infsa.create_model(MODEL)
    rows, columns = (-(-side // step) for side, step in zip(size, model.patch_embed.patch_size, strict=True))
    return rows * columns * model.embed_dim * 4


def strategies(options: argparse.Namespace) -> dict[str, Any]:
    """The same crop by every strategy; with little more memory than the least, spilled tokens go to a file."""
    rows = []
    megapixels = options.side**2 / 1e6
    with tempfile.TemporaryDirectory() as folder:
        crop = Path(folder) / "crop.npy"
        np.save(crop, read_crop(options.file, options.side))
        given = [str(crop), "--tile", str(options.tile)]
        for strategy, where in (("recompute", "nowhere"), ("spill", "memory"), ("spill", "file")):
            memory = str(least_memory(*given) + 2**23)
            extra = ["--memory", memory, "--scratch", folder] if where == "file" else []
            record = measured(*given, "--strategy", strategy, *extra)
            row = {name: record[name] for name in ("passes", "seconds_per_megapixel", "resident_peak")}
            row["processor_seconds_per_megapixel"] = record["processor_seconds"] / megapixels
            kept = tokens_bytes([options.side, options.side]) if strategy == "spill" else 0
            row |= {"memory": int(memory) if extra else None, "token_bytes_per_megapixel": kept / megapixels}
            rows.append({"strategy": strategy, "where": where, **row})
    return {"model": MODEL, "side": options.side, "tile": options.tile, "rows": rows}


def least_memory(*arguments: str) -> int:
    """What the command says it needs when it is given too little."""
    done = subprocess.run([*COMMAND, *arguments, "--memory", "1MiB"], capture_output=True, text=True, check=False)
    found = re.search(r"need ([\d.]+) (MiB|GiB)", done.stderr)
    if found is None:
        raise SystemExit(f"infsa stream did not say how much it needs: {done.stderr}")
    return parse_bytes(f"{found[1]}{found[2]}")


def read_crop(file: str, side: int) -> np.ndarray:
    source = infsa.streaming.open_source(file)
    top, left = max(0, (source.height - side) // 2), max(0, (source.width - side) // 2)
    return np.asarray(source.read(top, left, min(source.height, top + side), min(source.width, left + side)))


# This code and other code


CHILD = """
import json, resource, sys, time
import infsa
model = infsa.create_model(sys.argv[2], pretrained=True, dynamic_img_pad=True).eval()
began = time.perf_counter()
logits = infsa.stream(model, sys.argv[1], tile=int(sys.argv[3]), strategy=sys.argv[4]).logits[0].tolist()
seconds = time.perf_counter() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
facts = {"version": infsa.__version__, "code": infsa.__file__}
print(json.dumps({**facts, "seconds": seconds, "peak": peak, "logits": logits}))
"""


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of this code over those of other code, in turns, each run in a process of its own."""
    codes = {"this": str(Path(infsa.__file__).parents[1]), "other": str(Path(options.against).resolve())}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        noise, crop = Path(folder) / "noise.npy", Path(folder) / "crop.jpg"
        shape = (options.side, options.side, 3)
        np.save(noise, np.random.default_rng(0).integers(0, 256, shape, np.uint8))
        Image.fromarray(read_crop(options.file, options.side)).save(crop, quality=95)
        cases: list[tuple[str, Path, str, int]] = [
            ("noise, .npy", noise, "spill", options.rounds),
            ("noise, .npy", noise, "recompute", 1),
            ("photograph, JPEG", crop, "spill", options.rounds),
        ]
        cases += [("photograph, JPEG", Path(options.file), "auto", 1)] if options.whole else []
        for name, file, strategy, rounds in cases:
            found: dict[str, list[dict[str, Any]]] = {"this": [], "other": []}
            for turn in range(rounds):
                for code in list(found) if turn % 2 else reversed(list(found)):
                    command = [sys.executable, "-c", CHILD, str(file), MODEL, str(options.tile), strategy]
                    given = {**os.environ, "PYTHONPATH": codes[code]}
                    out = subprocess.run(command, env=given, capture_output=True, text=True, check=True).stdout
                    found[code].append(json.loads(out))
                    assert found[code][-1].pop("code").startswith(codes[code])
            mine, theirs = (torch.tensor(found[code][0]["logits"]) for code in ("this", "other"))
            source = infsa.streaming.open_source(file)
            seconds = {code: min(run["seconds"] for run in runs) for code, runs in found.items()}
            row = {"image": name, "size": [source.width, source.height], "strategy": strategy, "rounds": rounds}
            row |= {"seconds": seconds, "ratio": seconds["this"] / seconds["other"]}
            row["megapixels_per_second"] = source.width * source.height / 1e6 / seconds["this"]
            row["peak"] = {code: max(run["peak"] for run in runs) for code, runs in found.items()}
            row["relative_difference"] = float((mine - theirs).norm() / theirs.norm())
            rows.append(row)
            print(row, flush=True)
    return {"model": MODEL, "tile": options.tile, "other": found["other"][0]["version"], "rows": rows}


# Intervals


def coverage(options: argparse.Namespace) -> dict[str, Any]:
    """How often the 90 % interval of a logit holds the exact value, over random subsets of the tiles."""
    model = infsa.create_model(MODEL, pretrained=True).eval().to(options.device)
    crop = read_crop(options.file, options.side)
    exact = infsa.stream(model, crop, tile=options.tile).logits
    rows = []
    for share in options.shares:
        began, inside, widths, errors = time.perf_counter(), [], [], []
        for seed in range(options.subsets):
            found = infsa.streaming.estimate(model, crop, share, tile=options.tile, seed=seed)
            inside.append((found.low <= exact) & (exact <= found.high))
            widths.append(found.high - found.low)
            errors.append(found.logits - exact)
        held = torch.cat(inside).double()  # (subsets, classes)
        rows.append(
            {
                "share": share,
                "tiles": found.tiles,
                "coverage": held.mean().item(),
                "coverage_of_the_first_guess": held[:, exact.argmax()].mean().item(),
                "least_coverage_of_a_class": held.mean(0).min().item(),
                "mean_width": torch.cat(widths).mean().item(),
                "root_mean_square_error": torch.cat(errors).square().mean().sqrt().item(),
                "seconds_per_estimate": (time.perf_counter() - began) / options.subsets,
            }
        )
        print(rows[-1], flush=True)
    facts = {"model": MODEL, "side": options.side, "tile": options.tile, "subsets": options.subsets}
    return {**facts, "confidence": 0.9, "classes": exact.shape[1], "rows": rows}


# On a GPU


LIMITS = {"device": 1.5, "host": 2.5}  # times the seconds in memory, in bfloat16


def gpu(options: argparse.Namespace) -> dict[str, Any]:
    """One large image in memory and streamed, its tokens nowhere, on the GPU and in host memory: seconds and memory."""
    torch.manual_seed(0)
    device = torch.device(options.device)
    model = infsa.create_model(options.model).eval().to(device)
    pixels = torch.randn(3, options.side, options.side, device=device)
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            model, held = model.to(dtype), pixels.to(dtype)
            reference, memory = timed(lambda: model(held[None]), device, options.runs)  # noqa: B023
            rows.append({"run": "in memory", "dtype": str(dtype), **memory})
            for strategy, where in (("recompute", "nowhere"), ("spill", "device"), ("spill", "host")):
                given = {"tile": options.tile, "strategy": strategy}
                if where == "host" and device.type == "cuda":
                    given["device_memory"] = least_device_memory(model, held, given)
                result, row = timed(lambda: infsa.stream(model, held, **given), device, options.runs)  # noqa: B023
                error = ((result.logits - reference).float().norm() / reference.float().norm()).item()
                row |= {
                    "ratio": row["seconds"] / memory["seconds"],
                    "tiers": result.plan.tiers,
                    "relative_error": error,
                }
                row |= {"plan": str(result.plan), "profile": result.profile.record()}
                row |= {"limit": LIMITS[where]} if dtype == torch.bfloat16 and where in LIMITS else {}
                row |= {"where": where} if where == "host" else {}
                rows.append({"run": strategy, "dtype": str(dtype), **row})
                print(rows[-1], flush=True)
                del result
    for row in rows:
        row["seconds_per_megapixel"] = row["seconds"] / (options.side**2 / 1e6)
    return {"model": options.model, "side": options.side, "tile": options.tile, "rows": rows}


def least_device_memory(model: torch.nn.Module, image: torch.Tensor, given: dict[str, Any]) -> int:
    """A little more than the least that a stream of these tiles needs on the GPU: tokens find no room there."""
    tile = infsa.streaming.plan_stream(model, image, **given).tile[0]
    given["tile"] = tile  # the same with less memory
    try:
        infsa.streaming.plan_stream(model, image, **given, device_memory="1MiB")
    except ValueError as error:
        found = re.search(r"need ([\d.]+) ?(KiB|MiB|GiB)", str(error))
        if found is not None:
            return round(parse_bytes(f"{found[1]}{found[2]}") * 1.01) + 2**24
    raise SystemExit("the stream did not say how much memory it needs on the GPU")


# Documents


def draw() -> None:
    """The tables of the documents, from all that has been measured."""
    found = [read_json(path) for path in sorted(RESULTS.glob("streaming*.json"))]
    results = {name: section for content in found for name, section in content.items()}
    write_tables(DOCS / "scale.md", {"streaming": streaming_table(results)})
    if "coverage" in results:
        write_tables(DOCS / "streaming.md", {"coverage": coverage_table(results["coverage"])})


def streaming_table(results: dict[str, Any]) -> str:
    """A row per image and strategy, and below them what device and model they were measured with."""
    lines = ["| device | image | strategy | s per megapixel | peak memory | error |", "| --- " * 6 + "|"]
    notes = []
    if "image" in results:
        one = results["image"]
        how = f"{one['strategy']}, limit {one['memory']}, with map"
        lines.append(row_of("CPU", one["size"], how, one))
    for name, device in (("strategies", "CPU"), ("gpu", "GPU")):
        section = results.get(name, {})
        for row in section.get("rows", []):
            how = f"{strategy_of(row)}, {row['dtype'][6:]}" if name == "gpu" else strategy_of(row)
            lines.append(row_of(device, [section["side"]] * 2, how, row))
        if section:
            made = section["provenance"]
            machine = made.get("gpu") or f"{made['cpu']}, {made['threads']} threads"
            notes.append(f"{device}: {machine}, `{section['model']}`")
    lines += [
        row_of("GPU", row["size"], f"{row['image']}, {row['dtype'][6:]}", row)
        for row in results.get("files", {}).get("rows", [])
        if row["model"] != MODEL  # the ratios of both stand in the text
    ]
    return "\n".join([*lines, "", f"{'; '.join(notes)}."]) + "\n"


def strategy_of(row: dict[str, Any]) -> str:
    """The strategy of a row and where the tokens are."""
    name: str = row.get("run") or row["strategy"]
    where = {"host": "host memory", "nowhere": None}.get(row.get("where"), row.get("where", "GPU memory"))
    return f"{name} to {where}" if name == "spill" else name


def row_of(device: str, size: list[int], how: str, row: dict[str, Any]) -> str:
    peak, error = row.get("resident_peak") or row.get("device_peak"), row.get("relative_error")
    cells = (device, "×".join(map(str, size)), how, f"{row['seconds_per_megapixel']:.3g}",
             "" if peak is None else show_bytes(peak), "" if error is None else f"{error:.0e}")  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def coverage_table(section: dict[str, Any]) -> str:
    lines = [
        "| share | tiles | inside the 90 % interval | first guess | mean width | error (RMS) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['share']:.0%} | {row['tiles']} | {row['coverage']:.1%} | {row['coverage_of_the_first_guess']:.1%} "
        f"| {row['mean_width']:.3f} | {row['root_mean_square_error']:.3f} |"
        for row in section["rows"]
    ]
    note = (
        f"Over {section['subsets']} random subsets of the tiles ({section['tile']} px) of a crop of {section['side']}² "
        f"pixels, `{section['model']}`, all {section['classes']} logits."
    )
    return "\n".join([*lines, "", note]) + "\n"


if __name__ == "__main__":
    main()
