"""Small models of every mechanism."""

import torch

import infsa
from infsa.nn.peers import ATTENTIONS

NAMES = tuple(ATTENTIONS)
WITH_MAP = tuple(name for name, attention in ATTENTIONS.items() if attention.has_map)
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}


def small(attention="infsa_linear", seed=0, **options):
    """A model of two narrow layers on a 4 × 4 grid, in eval mode."""
    torch.manual_seed(seed)
    return infsa.models.InfViT(attention=attention, **{**SMALL, **options}).eval()


def images(batch=2, height=32, width=32, seed=0):
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(seed))
