"""Fine-tune a Linear InfViT on images that are too large for an ordinary backward pass.

    python examples/finetune_gigapixel.py                            two drawn images of 2048 x 2048, a few steps
    python examples/finetune_gigapixel.py --images a.tif:0 b.tif:3   own images with their classes

Every step takes the exact gradients of one whole image, tile by tile: what autograd would give if the image fitted.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import infsa
from infsa.streaming import stream_backward


def main() -> None:
    """Train for a few steps and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", nargs="+", help="FILE:CLASS")
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--side", type=int, default=2048, help="of the drawn images")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--tile", type=int, default=256)
    parser.add_argument("--memory", help="all that the process may hold, such as 2GiB")
    parser.add_argument("--rate", type=float, default=1e-4)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = infsa.create_model("infvit_linear_tiny", pretrained=True, num_classes=options.classes, dynamic_img_pad=True)
    model.eval()  # no dropout: the gradient of a tile must not depend on chance
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    with tempfile.TemporaryDirectory() as folder:
        images = given(options.images) if options.images else drawn(Path(folder), options.side)
        for step in range(options.steps):
            path, label = images[step % len(images)]
            target = torch.tensor([label])
            result = stream_backward(
                model,
                path,
                lambda logits, target=target: cross_entropy(logits, target),
                tile=options.tile,
                memory=options.memory,
            )
            optimizer.step()
            optimizer.zero_grad()
            print(f"step {step + 1}: {path.name}, class {label}, loss {result.loss.item():.4f} ({result.strategy})")


def given(names: list[str]) -> list[tuple[Path, int]]:
    """Files with their classes."""
    pairs = [name.rpartition(":") for name in names]
    return [(Path(path), int(label)) for path, _, label in pairs]


def drawn(folder: Path, side: int) -> list[tuple[Path, int]]:
    """Two images that differ in a small bright patch."""
    rng = np.random.default_rng(0)
    images = []
    for label in range(2):
        pixels = rng.integers(0, 64, (side, side, 3), np.uint8)
        if label:
            pixels[side // 3 : side // 3 + side // 8, side // 2 : side // 2 + side // 8] += 160
        np.save(folder / f"image-{label}.npy", pixels)
        images.append((folder / f"image-{label}.npy", label))
    return images


if __name__ == "__main__":
    main()
