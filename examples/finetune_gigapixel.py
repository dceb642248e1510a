"""Fine-tune a Linear InfViT on images too large for an ordinary backward pass, with exact gradients.

    python examples/finetune_gigapixel.py orion.jpg=12 slide.tif=3 --steps 2 --memory 4GiB --out runs/tuned

Each image is named with the number of its class. Only the last blocks and the classifier are trained by default. Every
step takes all images, tile by tile, and prints the loss, megapixels of the image per second, what most of the time went
to, and the peak memory.
"""

import argparse
from pathlib import Path

import torch
from torch.nn import functional as F

import infsa
from infsa.evaluate import load_model
from infsa.models import InfViT, save_weights
from infsa.streaming import open_source, stream_backward


def images(words: list[str], classes: int) -> list[tuple[Path, torch.Tensor]]:
    """The files and their classes, from words such as ``orion.jpg=12``."""
    found = []
    for word in words:
        name, _, number = word.rpartition("=")
        if not name or not number.isdigit() or int(number) >= classes:
            raise ValueError(f"name an image as FILE=CLASS with a class from 0 to {classes - 1}, got {word!r}")
        found.append((Path(name), torch.tensor([int(number)])))
    return found


def train_last(model: InfViT, blocks: int) -> list[torch.nn.Parameter]:
    """Freeze all but the last blocks, the final norm and the classifier; the parameters that are trained."""
    model.requires_grad_(False)
    last = list(model.blocks)[len(model.blocks) - blocks :]
    for module in [*last, model.norm, model.head]:
        module.requires_grad_(True)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="+", help="FILE=CLASS")
    parser.add_argument("--model", default="infvit_linear_tiny")
    parser.add_argument("--out", type=Path, default=Path("runs/finetuned"))
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=1, help="last blocks to train")
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--tile", type=int, help="side of the tiles in pixels")
    parser.add_argument("--memory", help="all that the process may hold, such as 4GiB")
    parser.add_argument("--scratch", help="folder for tokens that do not fit in memory")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    model = load_model(options.model, torch.device(options.device))
    model.patch_embed.dynamic_img_pad = True  # sides need not be multiples of the patch
    chosen = images(options.images, model.num_classes)
    optimizer = torch.optim.AdamW(train_last(model, options.blocks), lr=options.rate)
    limits = {"tile": options.tile, "memory": options.memory, "scratch": options.scratch}
    for step in range(options.steps):
        for file, wanted in chosen:
            source, wanted = open_source(file), wanted.to(options.device)
            loss = lambda logits, wanted=wanted: F.cross_entropy(logits, wanted) / len(chosen)  # noqa: E731
            result = stream_backward(model, source, loss, **limits)
            speed = source.height * source.width / 1e6 / result.profile.seconds
            peak = infsa.streaming.memory.show_bytes(result.peak_memory)
            if options.device.startswith("cuda"):
                peak += f", {infsa.streaming.memory.show_bytes(torch.cuda.max_memory_allocated())} on the GPU"
            print(
                f"step {step + 1}, {file.name}: loss {float(result.loss) * len(chosen):.4f}, {speed:.2f} Mpx/s "
                f"(mostly {result.profile.slowest}), peak {peak}",
                flush=True,
            )
        optimizer.step()
        optimizer.zero_grad()
    model.requires_grad_(True)
    save_weights(model, options.out)
    print(f"model in {options.out}")


if __name__ == "__main__":
    main()
