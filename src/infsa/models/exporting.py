"""A model as an ONNX file, a ``torch.export`` program or a saved folder, compared with the model on the way out."""

import importlib.util
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .folder import folder_config, label_names
from .infvit import InfViT
from .weights import load_weights, read_weights, save_weights

ENDINGS = {".onnx": "onnx", ".pt2": "pt2", "": "safetensors"}  # of a path, and the format that it asks for
FORMATS = tuple(ENDINGS.values())
TOLERANCE = 1e-3  # of the largest logit
ONNX_LIMIT = 2**31 - 2**20  # bytes of one ONNX file
Run = Callable[[Tensor], Tensor]
SIZES = ("batch", "height", "width")


@dataclass(frozen=True)
class Exported:
    """What was written, which sizes it takes, and how far it is from the model."""

    path: str
    format: str
    dynamic: list[str]  # sizes of the input (batch, 3, height, width) that may differ from call to call
    fixed: str  # why the others may not; empty if all may
    checked: list[tuple[int, ...]]  # shapes of the inputs on which the file was compared with the model
    difference: float  # the largest between their logits, over the largest logit
    note: str  # what could not be checked


def export_model(
    model: InfViT,
    path: str | Path,
    format: str | None = None,
    *,
    fixed: bool = False,
    size: int | None = None,
    overwrite: bool = False,
) -> Exported:
    """Export a model for other programs; the file is deleted if its outputs differ from the model's.

    Args:
        model: is put into eval mode.
        path: a file for ``onnx`` and ``pt2``, a folder for ``safetensors``.
        format: by the path's ending if not given: ``.onnx``, ``.pt2``, or none for ``safetensors``.
        fixed: one image of one size at a time; otherwise batch, height and width are dynamic where they can be.
        size: side of the images if ``fixed``; the model's own if not given.
        overwrite: replace what is at ``path``.
    """
    path = Path(path)
    kind = _format(path, format)
    _check_place(path, kind, overwrite)
    if kind == "safetensors" and (fixed or size is not None):
        raise ValueError("fixed=True is for onnx and pt2; safetensors hold weights for any size")
    if size is not None and not fixed:
        raise ValueError(f"size={size} needs fixed=True; otherwise images of any size are accepted")
    _check_packages(kind, model)
    model = model.eval()
    sides = (size, size) if size is not None else tuple(model.patch_embed.img_size)
    model.grid_of(torch.empty(1, model.in_chans, *sides, device="meta"))  # refuses a side that is no multiple
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".export-") as scratch:
        staged = Path(scratch) / (path.name or "model")
        if kind == "safetensors":
            done = _save_folder(model, staged)
        else:
            done = _save_program(model, staged, kind, sides, fixed)
        for file in staged.iterdir() if path.is_dir() else ():
            os.replace(file, path / file.name)
        if not path.is_dir():
            os.replace(staged, path)
    return Exported(str(path), kind, *done)


def as_dict(exported: Exported) -> dict[str, Any]:
    """What was written, as plain data."""
    return json.loads(json.dumps(asdict(exported)))


def _format(path: Path, format: str | None) -> str:
    if format is not None and format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    by_name = ENDINGS.get(path.suffix.lower())
    if format is None and by_name is None:
        raise ValueError(f"the path must end in .onnx or .pt2, or be a folder without an ending, got {path.name!r}")
    if format is not None and by_name not in (None, format) and by_name != "safetensors":
        raise ValueError(f"the ending of {path.name} asks for {by_name}, got format={format!r}")
    return format or str(by_name)


def _check_place(path: Path, kind: str, overwrite: bool) -> None:
    """Refuse a place that cannot be written to, or that holds something else than what may be replaced."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"no folder {path.parent}")
    if path.is_dir() and kind != "safetensors":
        raise ValueError(f"{kind} is one file, got the folder {path}")
    if path.is_file() and kind == "safetensors":
        raise ValueError(f"safetensors are saved in a folder, got the file {path}")
    if path.is_dir() and any(path.iterdir()) and not (path / "model.safetensors").is_file():
        raise FileExistsError(f"{path} holds files that are not of a saved model")
    if path.exists() and not overwrite and (path.is_file() or any(path.iterdir())):
        raise FileExistsError(f"{path} exists already; replace it with --overwrite (overwrite=True)")


def _check_packages(kind: str, model: InfViT) -> None:
    if kind != "onnx":
        return
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"ONNX needs the package {missing[0]}: pip install '.[export]' in a checkout")
    needed = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    if needed > ONNX_LIMIT:
        raise ValueError(f"an ONNX file holds at most 2 GiB, and this model has {needed / 2**30:.1f}; use pt2")


def _images(batch: int, model: InfViT, height: int, width: int) -> Tensor:
    device = model.patch_embed.proj.weight.device
    shape = (batch, model.in_chans, height, width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(batch)).to(device)


Done = tuple[list[str], str, list[tuple[int, ...]], float, str]


def _save_folder(model: InfViT, folder: Path) -> Done:
    """Save the weights and load them into another model."""
    save_weights(model, folder)
    saved = read_weights(folder)[1].items()
    options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in saved if k != "architecture"}
    with torch.random.fork_rng(devices=[]):
        again = InfViT(**options)
    load_weights(again, folder)
    again = again.to(model.patch_embed.proj.weight).eval()
    dynamic = list(SIZES) if model.dynamic_img_size else ["batch"]
    difference, shapes = _compared(model, again, dynamic, model.patch_embed.img_size)
    fixed = "" if model.dynamic_img_size else _only(model)
    return dynamic, fixed, shapes, difference, ""


def _only(model: InfViT) -> str:
    height, width = model.patch_embed.img_size
    return f"the model takes images of {height} × {width} only"


def _save_program(model: InfViT, file: Path, kind: str, size: tuple[int, ...], fixed: bool) -> Done:
    """Export with as many dynamic sizes as the model and the exporter allow."""
    reason, tries = "", [[]] if fixed else [list(SIZES), ["batch"], []]
    if not fixed and not model.dynamic_img_size:
        tries, reason = tries[1:], _only(model)
    reason = "asked for" if fixed else reason
    for dynamic in tries:
        try:
            run, note = (_to_onnx if kind == "onnx" else _to_program)(model, file, size, dynamic)
            difference, shapes = _compared(model, run, dynamic, size) if run is not None else (0.0, [])
        except Exception as error:  # exporters raise almost anything
            line = " ".join(str(error).split())[:200] or type(error).__name__
            if dynamic == tries[-1]:
                raise ValueError(f"the model could not be exported as {kind}: {line}") from error
            reason = reason or line
            continue
        return dynamic, reason, shapes, difference, note
    raise AssertionError("the last try returns or raises")


def _compared(
    model: InfViT, run: Run, dynamic: list[str], size: tuple[int, ...]
) -> tuple[float, list[tuple[int, ...]]]:
    """The largest difference of logits, and the shapes it was looked for on: two batches and two sizes if dynamic."""
    rows, columns = model.patch_embed.patch_size
    height, width = size
    sizes = [(height, width), (height + 2 * rows, max(columns, width - columns))]
    shapes = [
        (batch, height, width)
        for batch in ((1, 3) if "batch" in dynamic else (1,))
        for height, width in (sizes if "height" in dynamic else sizes[:1])
    ]
    worst = 0.0
    for shape in shapes:
        images = _images(shape[0], model, *shape[1:])
        with torch.no_grad():
            given, wanted = run(images), model(images)
        worst = max(worst, float((given - wanted).abs().max() / wanted.abs().max().clamp_min(1.0)))
    if not worst <= TOLERANCE:
        raise ValueError(f"its logits differ from the model's by {worst:.1e} of the largest")
    return worst, [(batch, model.in_chans, *rest) for batch, *rest in shapes]


def _dims(model: InfViT, dynamic: list[str]) -> dict[int, Any]:
    """The dynamic sizes of the input, for ``torch.export``: sides are multiples of the patch."""
    rows, columns = model.patch_embed.patch_size
    sides = {} if "height" not in dynamic else {
        2: rows * torch.export.Dim("rows", min=1, max=2**14), 3: columns * torch.export.Dim("columns", min=1, max=2**14)
    }  # fmt: skip
    return ({0: torch.export.Dim("batch", min=1, max=2**14)} if dynamic else {}) | sides


def _example(model: InfViT, size: tuple[int, ...], dynamic: list[str]) -> Tensor:
    """An input to trace with; where sizes are dynamic, none that the model treats in a way of its own."""
    height, width = size
    rows, columns = model.patch_embed.patch_size
    if "height" in dynamic:
        height, width = height + rows, width + 3 * columns
    return _images(2 if dynamic else 1, model, height, width)


def _facts(model: InfViT) -> dict[str, str]:
    """What a program needs to prepare images and to name classes, as JSON."""
    config = folder_config(model)
    data = config["pretrained_cfg"]
    facts = {name: data.get(name) for name in ("mean", "std", "input_size", "crop_pct", "interpolation")}
    facts |= {"label_names": label_names(model), "architecture": config["architecture"]}
    return {name: json.dumps(value) for name, value in facts.items() if value is not None}


def _to_program(model: InfViT, file: Path, size: tuple[int, ...], dynamic: list[str]) -> tuple[Run | None, str]:
    with _quiet():
        shapes = (_dims(model, dynamic),) if dynamic else None
        program = torch.export.export(model, (_example(model, size, dynamic),), dynamic_shapes=shapes)
        torch.export.save(program, file, extra_files={"infsa.json": json.dumps(_facts(model))})
        loaded: Run = torch.export.load(file).module()
    return loaded, ""


def _to_onnx(model: InfViT, file: Path, size: tuple[int, ...], dynamic: list[str]) -> tuple[Run | None, str]:
    import onnx

    with _quiet():
        shapes = (_dims(model, dynamic),) if dynamic else None
        torch.onnx.export(
            model, (_example(model, size, dynamic),), file, dynamo=True, dynamic_shapes=shapes, external_data=False,
            input_names=["images"], output_names=["logits"], verbose=False,
        )  # fmt: skip
    written = onnx.load(file)
    for name, value in _facts(model).items():
        written.metadata_props.add(key=name, value=value)
    onnx.checker.check_model(written)
    onnx.save(written, file)
    if importlib.util.find_spec("onnxruntime") is None:
        return None, "onnxruntime is not installed: the file was not compared with the model"
    import onnxruntime  # type: ignore[import-untyped]

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    device = model.patch_embed.proj.weight.device

    def run(images: Tensor) -> Tensor:
        (logits,) = session.run(None, {"images": images.cpu().numpy()})
        return torch.from_numpy(logits).to(device)

    return run, ""


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what exporters print and log off the screen."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with open(os.devnull, "w") as nowhere, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)
            with redirect_stdout(nowhere), redirect_stderr(nowhere):
                yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
