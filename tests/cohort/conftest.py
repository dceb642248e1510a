"""A small model in a folder, and images of many sizes and kinds."""

import numpy as np
import pytest
from PIL import Image

from infsa.models import describe_data, save_weights
from tests.models.helpers import small

NAMES = ["ant", "bee", "cow", "dog", "eel"]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    made = small()
    made.pretrained_cfg = {}
    describe_data(made, label_names=NAMES)
    return str(save_weights(made, tmp_path_factory.mktemp("model")))


def noise(width, height, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Thirty images of six sizes and formats, and six that are broken."""
    root = tmp_path_factory.mktemp("images")
    sizes = [(40, 24), (33, 17), (8, 8), (64, 40), (5, 70), (24, 40)]
    for number in range(36):
        path = root / f"{number:02d}.{('png', 'jpg', 'webp', 'bmp', 'tif')[number % 5]}"
        noise(*sizes[number % 6], number).save(path)
        data = path.read_bytes()
        if number % 6 == 5:
            path.write_bytes([b"", data[: len(data) // 2], b"no image", data[:20]][number // 6 % 4])
    return root
