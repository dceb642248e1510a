"""A queue of photographs of all sizes, from JPEG to class: images per second, against timm's ViT eager and compiled.

    python benchmarks/serving.py --out benchmarks/results/serving-h200.json
    python benchmarks/serving.py --tiny --out tiny.json       # anywhere: small models and photographs

Photographs of 0.3 to 12 megapixels wait in a queue. Threads decode them and cut their sides to multiples of the patch;
those of one size that wait are classified as one batch, at their own resolution, in bfloat16. All models have four
layers of width 1024. What is compiled is compiled before, for sizes of any kind (``dynamic=True``); the time is that of
a queue none of whose sizes has been seen. A second pass meets sizes that have.
"""

import io
import json
import random
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import numpy as np
import timm
import torch
import typer
from any_size import sizes
from kernel_checks import DEVICE, GPU
from kernels import reason
from models import TINY, built, synchronize
from PIL import Image

from infsa.files import write_json
from infsa.models import fast
from infsa.provenance import provenance

PATCH, MOST = 16, 8  # pixels; images of a batch
MEAN, DEVIATION = 127.5, 64.0


def photographs(count, threads, tiny):
    """JPEG files in memory: smooth colours, half of them in four favourite sizes, the others all different."""
    draw, (smallest, largest) = random.Random(0), (3e3, 2e4) if tiny else (3e5, 1.2e7)
    common = sizes(4, 5, smallest, largest)
    chosen = [draw.choice(common) if draw.random() < 0.5 else size for size in sizes(count, 6, smallest, largest)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(photograph, chosen))


def photograph(size):
    """One of them, as bytes."""
    height, width = size
    colours = np.random.default_rng(height * width).integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
    file = io.BytesIO()
    image = Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC)
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def decoded(file):
    """A JPEG file as bytes (3, H, W), its sides cut to multiples of the patch."""
    image = np.asarray(Image.open(io.BytesIO(file)))
    height, width = (side // PATCH * PATCH for side in image.shape[:2])
    return torch.from_numpy(image[:height, :width].transpose(2, 0, 1).copy())


def served(files, classify, threads):
    """Classes of all files, and how many batches they took."""
    classes, batches = {}, 0
    with ThreadPoolExecutor(threads) as pool:
        waiting, work = defaultdict(list), pool.map(decoded, files)
        for index, image in enumerate(work):
            waiting[image.shape].append((index, image))
            if len(waiting[image.shape]) == MOST:
                classes |= classified(waiting.pop(image.shape), classify)
                batches += 1
        for group in waiting.values():
            classes |= classified(group, classify)
            batches += 1
    synchronize()
    return torch.stack([classes[index] for index in range(len(files))]).tolist(), batches


def classified(group, classify):
    """The classes of images of one size, which are asked for only at the end."""
    images = torch.stack([image for _, image in group])
    images = (images.pin_memory() if GPU else images).to(DEVICE, non_blocking=True)
    found = classify((images.to(torch.bfloat16) - MEAN) / DEVIATION).argmax(-1)
    return {index: found[place] for place, (index, _) in enumerate(group)}


def rivals(tiny):
    """Name to callable and what has to be done before: ours, and timm's ViT of the same width and depth."""
    options = {"depth": 4, "embed_dim": 1024, "num_heads": 16} | (TINY if tiny else {})
    vit = timm.create_model("vit_base_patch16_224", dynamic_img_size=True, **options)
    vit = vit.to(DEVICE, torch.bfloat16).eval()
    return {
        "Linear InfViT, fast": fast(built("linear", tiny)),
        "Pure InfViT, fast": fast(built("pure", tiny)),
        "timm ViT, eager": vit,
        "timm ViT, compiled": torch.compile(vit, dynamic=True, backend="eager" if tiny else "inductor"),
    }


@torch.no_grad()
def measured(name, run, files, threads):
    """Images per second over a queue of unknown sizes, and over the same queue again."""
    row = {}
    begin = time.perf_counter()
    for batch in (1, 2):  # what is compiled for all sizes is compiled here
        for side in (224, 256):
            run(torch.randn(batch, 3, side, side, device=DEVICE, dtype=torch.bfloat16))
    synchronize()
    row["ready_s"] = time.perf_counter() - begin
    for when in ("unknown sizes", "known sizes"):
        begin = time.perf_counter()
        _, row["batches"] = served(files, run, threads)
        row[when] = len(files) / (time.perf_counter() - begin)
    print(name, json.dumps(row), flush=True)
    return row


def main(
    out: Annotated[Path, typer.Option(help="JSON file to write.")],
    count: Annotated[int, typer.Option(help="Photographs in the queue.")] = 256,
    threads: Annotated[int, typer.Option(help="Threads that decode.")] = 16,
    tiny: Annotated[bool, typer.Option(help="Small models and photographs, on any device.")] = False,
) -> None:
    """Serve a queue with each model.

    Example: python benchmarks/serving.py --out serving.json
    """
    if not (GPU or tiny):
        raise typer.BadParameter("needs a CUDA device, or --tiny")
    files = photographs(count, threads, tiny)
    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        pixels = sum(image[0].numel() for image in pool.map(decoded, files))
    alone = len(files) / (time.perf_counter() - begin)
    report = {"photographs": count, "megapixels": pixels / 1e6, "decoding alone": alone, "threads": threads, "rows": {}}
    print(json.dumps(report), flush=True)
    for name, run in rivals(tiny).items():
        try:
            report["rows"][name] = measured(name, run, files, threads)
        except Exception as error:  # out of memory, the compiler
            report["rows"][name] = {"failed": reason(error)}
        write_json(report | {"tiny": tiny, "provenance": provenance(DEVICE)}, out)


if __name__ == "__main__":
    typer.run(main)
