"""Fills: what removed pixels become."""

import numpy as np
import pytest
import scipy.ndimage
import scipy.sparse
import scipy.sparse.linalg
import torch

from infsa.evaluate.fills import RESIDUAL, impute, pixels, replacement


def test_fixed_replacements():
    images = torch.randn(2, 3, 32, 24)
    assert torch.equal(replacement(images, "mean", (8, 8)), torch.zeros_like(images))
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    black = replacement(images, "black", (8, 8), mean, std)
    raw = black * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
    torch.testing.assert_close(raw, torch.zeros_like(raw), atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="'road' has no fixed replacement"):
        replacement(images, "road", (8, 8))


def test_blur_equals_scipy():
    images = torch.randn(1, 1, 32, 24, dtype=torch.float64)
    blurred = replacement(images, "blur", (4, 2))[0, 0]
    expected = scipy.ndimage.gaussian_filter(images[0, 0].numpy(), (4, 2), mode="mirror", truncate=2)
    np.testing.assert_allclose(blurred, expected, atol=1e-6)


def test_pixels_of_patches():
    removed = torch.tensor([[[True, False, False], [False, False, True]]])
    mask = pixels(removed, (2, 3))
    assert mask.shape == (1, 1, 4, 9)
    for row in range(4):
        for column in range(9):
            assert mask[0, 0, row, column] == removed[0, row // 2, column // 3]


def sparse_imputation(image, removed):
    """One channel, one sparse system, pixel by pixel: the values of the removed pixels."""
    height, width = image.shape
    unknown = {place: i for i, place in enumerate(zip(*np.nonzero(removed), strict=True))}
    matrix, target = scipy.sparse.lil_matrix((len(unknown), len(unknown))), np.zeros(len(unknown))
    for (row, column), i in unknown.items():
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                other = row + dy, column + dx
                if (dy, dx) == (0, 0) or not (0 <= other[0] < height and 0 <= other[1] < width):
                    continue
                weight = 1 / 12 if dy and dx else 1 / 6
                matrix[i, i] += weight
                if other in unknown:
                    matrix[i, unknown[other]] -= weight
                else:
                    target[i] += weight * image[other]
    return scipy.sparse.linalg.spsolve(matrix.tocsr(), target)


def test_imputation_equals_a_sparse_solver():
    images = torch.randn(3, 2, 16, 24, dtype=torch.float64)
    removed = pixels(torch.rand(3, 4, 6) < torch.tensor([0.2, 0.6, 0.9])[:, None, None], (4, 4))
    result = impute(images, removed)
    assert torch.equal(result[~removed.expand_as(result)], images[~removed.expand_as(images)])
    for image, mask, found in zip(images, removed[:, 0], result, strict=True):
        for channel in range(2):
            expected = sparse_imputation(image[channel].numpy(), mask.numpy())
            error = np.abs(found[channel][mask].numpy() - expected).max()
            assert error < 200 * RESIDUAL  # the system's condition is about that of a Laplacian of 16 pixels


def test_imputation_without_anything_left_gives_the_mean():
    assert torch.equal(impute(torch.randn(1, 3, 8, 8), torch.ones(1, 1, 8, 8).bool()), torch.zeros(1, 3, 8, 8))
    images = torch.randn(1, 3, 8, 8)
    assert torch.equal(impute(images, torch.zeros(1, 1, 8, 8).bool()), images)


def test_noise_touches_imputed_pixels_only():
    images, removed = torch.randn(1, 3, 8, 8), torch.zeros(1, 1, 8, 8).bool()
    removed[..., :4] = True
    noise = torch.randn(images.shape)
    torch.testing.assert_close(impute(images, removed, noise) - impute(images, removed), torch.where(removed, noise, 0))
