"""Patches embedded by one matrix product: what their convolution is, as long as they are disjoint."""

from timm.layers import PatchEmbed
from torch import Tensor, nn

from ..ops.dispatch import untouched
from ..ops.tracing import exporting


def embed_patches(layer: PatchEmbed, images: Tensor) -> Tensor:
    """Images (B, C, H, W) to embedded patches (B, h·w, D), by a product on GPUs and by the layer elsewhere.

    A convolution of three channels leaves most of a GPU's matrix units idle; 768 numbers per patch fill them.
    """
    if images.is_cuda and disjoint(layer) and not exporting():
        return project(layer, unfold(layer, images))
    return layer(images).flatten(1, 2)


def unfold(layer: PatchEmbed, images: Tensor) -> Tensor:
    """The pixels of each patch, in the order of the convolution's weight: (B, h·w, C · rows, columns)."""
    rows, columns = layer.patch_size
    if layer.dynamic_img_pad:
        below, right = -images.shape[2] % rows, -images.shape[3] % columns
        images = nn.functional.pad(images, (0, right, 0, below)) if below or right else images
    x = images.unflatten(3, (-1, columns)).unflatten(2, (-1, rows)).permute(0, 2, 4, 1, 3, 5)
    return x.flatten(3, 4).flatten(1, 2)


def project(layer: PatchEmbed, patches: Tensor) -> Tensor:
    """Unfolded patches to embedded ones: (B, h·w, C · rows, columns) -> (B, h·w, D)."""
    return layer.norm(nn.functional.linear(patches.flatten(2), layer.proj.weight.flatten(1), layer.proj.bias))


def disjoint(layer: PatchEmbed) -> bool:
    """Whether the patches are embedded by a plain convolution, each by itself, and nobody listens to it."""
    c = layer.proj
    plain = type(layer) is PatchEmbed and type(c) is nn.Conv2d and c.kernel_size == c.stride == tuple(layer.patch_size)
    alone = plain and c.groups == 1 and c.padding == (0, 0) and c.dilation == (1, 1)
    return alone and untouched(layer, c)
