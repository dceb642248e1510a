"""MoRF and LeRF: all levels of many images at once, against one image and one level at a time.

    python benchmarks/perturbation.py --images 1000 --out benchmarks/results/perturbation-cpu.json

Both measure the same curves of the same model (20 levels, both orders, 64 pixels) and must agree. They take turns, and
the medians are compared, so that other work on the machine slows both.
"""

import json
import statistics
import time
from pathlib import Path
from typing import Annotated

import torch
import typer

import infsa
from infsa.data import Shapes, Views, transform_for
from infsa.evaluate import data_config, level_counts, removal_curves
from infsa.provenance import provenance

LEVELS = 20


def batched(model, images, orders, fill):
    """(2B, K + 1): MoRF of every image, then LeRF."""
    ranks = orders.argsort(-1)
    classes = model(images).argmax(-1)
    owner = torch.arange(len(images), device=images.device).repeat(2)
    both = torch.cat([ranks, ranks.shape[1] - 1 - ranks])
    return removal_curves(model, images, both, owner, classes, grid=model.grid_of(images), levels=LEVELS, fill=fill)


def one_by_one(model, images, orders, fill):
    """The same with a forward pass for each image, order and level."""
    side, columns = model.patch_embed.patch_size[0], model.grid_of(images)[1]
    counts = level_counts(orders.shape[1], LEVELS).tolist()
    curves = []
    for direction in (1, -1):
        for image, order in zip(images, orders, strict=True):
            target = int(model(image[None]).argmax())
            places = order.tolist()[::direction]
            curve = []
            for count in counts:
                changed, kept = (
                    image.clone(),
                    torch.ones(1, *model.grid_of(images), dtype=torch.bool, device=image.device),
                )
                for place in places[:count]:
                    row, column = divmod(place, columns)
                    changed[:, row * side : (row + 1) * side, column * side : (column + 1) * side] = 0
                    kept[0, row, column] = False
                logits = model(changed[None], patch_mask=kept if fill == "tokens" else None)
                curve.append(float(logits.softmax(-1)[0, target]))
            curves.append(curve)
    return torch.tensor(curves)


def compare(model, images, orders, fill, rounds, long_run):
    """Rates of both ways in images per second, taken in turns, and how far apart their curves are."""
    few = 2 if images.device.type == "cpu" else 4
    batched(model, images[:2], orders[:2], fill)
    one_by_one(model, images[:1], orders[:1], fill)
    fast, slow, apart = [], [], 0.0
    for _ in range(rounds):
        seconds, curves = timed(batched, model, images, orders, fill)
        fast.append(len(images) / seconds)
        seconds, naive = timed(one_by_one, model, images[:few], orders[:few], fill)
        slow.append(few / seconds)
        apart = max(apart, float((curves.view(2, -1, LEVELS + 1)[:, :few].flatten(0, 1) - naive).abs().max()))
    passes = -(-long_run // len(images))
    seconds = sum(timed(batched, model, images, orders, fill)[0] for _ in range(passes))
    return {
        "batched_images_per_second": statistics.median(fast),
        "one_by_one_images_per_second": statistics.median(slow),
        "gain": statistics.median(fast) / statistics.median(slow),
        "largest_difference": apart,
        "seconds_for_all_images": seconds * long_run / (passes * len(images)),
    }


def timed(function, *arguments):
    """Seconds and result; waits for the device."""
    start = time.perf_counter()
    result = function(*arguments).cpu()
    return time.perf_counter() - start, result


@torch.inference_mode()
def main(
    images: Annotated[int, typer.Option(help="Images of the long batched run.")] = 1000,
    model: str = "vit_tiny,infvit_pure_tiny,infvit_linear_tiny",
    rounds: int = 5,
    device: str = "cpu",
    threads: int = 2,
    out: Path = Path("benchmarks/results/perturbation-cpu.json"),
) -> None:
    """Compare the two ways and write their rates."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    rows = {}
    for name in model.split(","):
        net = infsa.create_model(name, num_classes=50).eval().to(device)
        views = Views(Shapes(size=64, split="val"), transform_for(data_config(net), train=False))
        some = torch.stack([views[i].image for i in range(64)]).to(device)
        orders = net.attention_maps(some).flatten(1).argsort(-1, descending=True)
        rows[name] = {fill: compare(net, some, orders, fill, rounds, images) for fill in ("mean", "tokens")}
        print(name, json.dumps(rows[name]), flush=True)
    config = {"images": images, "levels": LEVELS, "orders": 2, "pixels": 64, "threads": threads}
    out.parent.mkdir(parents=True, exist_ok=True)
    made = provenance(device)
    out.write_text(json.dumps({"config": config, "made_with": made, "models": rows}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
