"""Kernels run on a CUDA device or in Triton's interpreter; without either only the files below are collected."""

import torch

from infsa.ops.dispatch import INTERPRETED

ANYWHERE = {"test_choice.py", "test_compiled.py", "test_interpreted.py"}


def pytest_ignore_collect(collection_path, config):
    runs = INTERPRETED or torch.cuda.is_available()
    if not runs and collection_path.suffix == ".py" and collection_path.name.startswith("test_"):
        return True if collection_path.name not in ANYWHERE else None
    return None
