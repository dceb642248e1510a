"""The model card written beside saved weights."""

from typing import Any

import torch

from ..version import __version__
from .infvit import InfViT

NOTES = {
    "infsa_linear": (
        "Linear-InfSA gives every token of a head the same pooled vector: over tokens, the output of each attention "
        "layer has rank 1. Maps are the centrality vector; they do not depend on the query."
    ),
    "infsa_pure": (
        "Pure InfSA divides ReLU scores by one Frobenius norm per head. Rows of the attention matrix do not sum to 1."
    ),
}


UNKNOWN = "Training data, recipe and measured accuracy are not recorded here: add them before you publish."


def model_card(model: InfViT, config: dict[str, Any], training: dict[str, Any] | None = None) -> str:
    """A model card in Markdown, with the metadata header that hubs read; ``training`` are facts, by their names."""
    data = config["pretrained_cfg"]
    parameters = sum(p.numel() for p in model.parameters())
    return f"""---
library_name: timm
license: mit
tags: [image-classification, infsa, timm]
---
# {config["architecture"]}

An InfViT with `{model.attention}` attention, saved by infsa {__version__} with torch {torch.__version__}.

| | |
| --- | --- |
| parameters | {parameters:,} |
| layers, width, heads | {len(model.blocks)}, {model.embed_dim}, {model.num_heads} |
| patch, stem | {tuple(model.patch_embed.patch_size)}, {model.stem} |
| classes | {model.num_classes} |
| input | {tuple(data["input_size"])} |
| mean, std | {data.get("mean")}, {data.get("std")} |

```python
import infsa, timm

model = timm.create_model("local-dir:PATH_OF_THIS_FOLDER", pretrained=True).eval()
maps = model.attention_maps(images)
```

## Know before use

{_notes(model)}

## Training

{UNKNOWN if training is None else _table(training)}
"""


def _notes(model: InfViT) -> str:
    found = [NOTES[name] for name in NOTES if name in model.attentions]
    return "\n\n".join(found) or "See the documentation of infsa for this mechanism."


def _table(facts: dict[str, Any]) -> str:
    rows = [f"| {name} | {_cell(value)} |" for name, value in facts.items()]
    return "\n".join(["| | |", "| --- | --- |", *rows])


def _cell(value: Any) -> str:
    return " ".join(str(value).replace("|", "\\|").split())
