"""What is asked of a cohort: how images are seen, what is kept of them, what a worker may hold."""

from dataclasses import dataclass
from typing import Any

from ..ops.checks import check_choice, check_count
from ..streaming.memory import parse_bytes

EMBEDDINGS = ("class", "pooled", "both")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Settings:
    """How every row is computed.

    Args:
        resolution: ``"native"`` for the whole image as it is, padded to whole patches; ``"crop"`` for the centre, as
            the model was validated; ``"model"`` for the whole image with as many pixels as the model was made for; a
            number for the whole image with as many pixels as a square of that side.
        embedding: ``"class"`` (the class token), ``"pooled"`` (the patch tokens, pooled as the model does it, or
            averaged if it reads its class token) or ``"both"``; by default the class token where there is one.
        maps: keep the attention map too.
        dtype: dtype of the model: ``"float32"``, ``"bfloat16"`` or ``"float16"``. The table is float32.
        batch_size: most images of one size at a time.
        memory: memory limit of each worker, as ``"4GiB"`` or bytes: images that need more than half of it are streamed.
            On a GPU it counts twice: of the GPU for batches, and of the host for what streams hold between passes.
        tile: side of the tiles of a streamed image.
        readers: threads of each worker that read images.

    Example:
        >>> infsa.cohort.Settings(resolution="crop").batch_size
        32
    """

    resolution: str | int = "native"
    embedding: str | None = None
    maps: bool = False
    dtype: str = "float32"
    batch_size: int = 32
    memory: str | int = "4GiB"
    tile: int = 1024
    readers: int = 2

    def __post_init__(self) -> None:
        side = self.resolution
        if side not in ("crop", "model", "native") and (isinstance(side, str | bool) or side < 1):
            raise ValueError(f"resolution must be crop, model, native or a number of pixels, got {side!r}")
        if self.embedding is not None:
            check_choice("embedding", self.embedding, EMBEDDINGS)
        check_choice("dtype", self.dtype, DTYPES)
        for name in ("batch_size", "tile", "readers"):
            check_count(getattr(self, name), name)
        parse_bytes(self.memory)

    @property
    def room(self) -> int:
        """Bytes that the images of one batch may take: half of the memory, the rest reads ahead."""
        return parse_bytes(self.memory) // 2

    def meaning(self) -> dict[str, Any]:
        """What a row means, apart from the model; the rest changes how it is computed, and rounding."""
        return {name: getattr(self, name) for name in ("resolution", "maps", "dtype")}
