"""Wrong input: one line that names the offending value, before any work is done."""

import math
import re

import pytest
import torch

import infsa

from .helpers import IMPLS, tokens

B, H, N, D = 2, 3, 5, 4
X = tokens(0, N, width=D)[0]
BOOL = torch.ones(B, N, dtype=torch.bool)


def full(*shape, dtype=torch.float64):
    return torch.ones(shape, dtype=dtype)


def mask(*shape):
    return full(*shape, dtype=torch.bool)


def refused(function, *args, says, **options):
    """The call raises ValueError or TypeError; its one-line message holds every word of `says`."""
    with pytest.raises((ValueError, TypeError)) as caught:
        function(*args, **options)
    message = str(caught.value)
    assert "\n" not in message
    for word in says:
        assert re.search(re.escape(str(word)), message), f"{word!r} is not in: {message}"


INPUTS = {
    "rank_3": ((X[0], X[0], X[0]), [(H, N, D)]),
    "rank_5": ((X[None], X[None], X[None]), [(1, B, H, N, D)]),
    "query_width": ((X[..., :3], X, X), [3, 4]),
    "key_value_length": ((X, X, X[:, :, :3]), [3, 5]),
    "heads": ((X, X[:, :2], X[:, :2]), [2, 3]),
    "value_heads": ((X, X, X[:, :2]), [2, 3]),
    "batch": ((X, X[:1], X[:1]), [1, 2]),
    "value_batch": ((X, X, X[:1]), [1, 2]),
    "key_dtype": ((X, X.float(), X), ["float32", "float64"]),
    "value_dtype": ((X, X, X.half()), ["float16", "float64"]),
    "device": ((X, X.to("meta"), X), ["meta", "cpu"]),
    "integers": ((X.long(), X.long(), X.long()), ["int64"]),
    "booleans": ((X > 0, X > 0, X > 0), ["bool"]),
    "complex": ((X + 0j, X + 0j, X + 0j), ["complex128"]),
    "no_queries": ((X[:, :, :0], X, X), [0]),
    "no_keys": ((X, X[:, :, :0], X[:, :, :0]), [0]),
    "no_tokens": ((X[:, :, :0],) * 3, [0]),
    "not_a_tensor": ((X, X.tolist(), X), ["list"]),
}


@pytest.mark.parametrize("case", INPUTS)
@pytest.mark.parametrize("name", ["pure_attention", "linear_attention"])
def test_inputs(name, case):
    inputs, says = INPUTS[case]
    refused(getattr(infsa, name), *inputs, says=says)


SHARED = {
    "gamma_0": ({"gamma": 0.0}, [0.0]),
    "gamma_1": ({"gamma": 1.0}, [1.0]),
    "gamma_negative": ({"gamma": -0.5}, [-0.5]),
    "gamma_large": ({"gamma": 1.5}, [1.5]),
    "gamma_nan": ({"gamma": math.nan}, ["nan"]),
    "gamma_text": ({"gamma": "0.7"}, ["0.7"]),
    "gamma_heads": ({"gamma": full(2)}, [2, H]),
    "gamma_matrix": ({"gamma": full(B, H)}, [(B, H)]),
    "activation": ({"activation": "softmax"}, ["softmax", "relu"]),
    "activation_function": ({"activation": torch.relu}, ["relu"]),
    "impl": ({"impl": "fast"}, ["fast", "chunked"]),
    "triton_is_not_available": ({"impl": "triton"}, ["triton"]),
    "eps_negative": ({"eps": -1e-6}, ["-1e-06"]),
    "eps_nan": ({"eps": math.nan}, ["nan"]),
    "key_mask_length": ({"key_mask": mask(B, N + 1)}, [(B, N + 1)]),
    "key_mask_batch": ({"key_mask": mask(B + 1, N)}, [(B + 1, N)]),
    "key_mask_square": ({"key_mask": mask(N, N)}, [(N, N)]),
    "key_mask_vector": ({"key_mask": mask(N)}, [(N,)]),
    "key_mask_four": ({"key_mask": mask(B, 1, N, N)}, [(B, 1, N, N)]),
    "key_mask_float": ({"key_mask": full(B, N)}, ["float64", "bool"]),
    "key_mask_integers": ({"key_mask": full(B, N, dtype=torch.int64)}, ["int64", "bool"]),
    "key_mask_list": ({"key_mask": [[True] * N] * B}, ["list"]),
    "key_mask_device": ({"key_mask": BOOL.to("meta")}, ["meta"]),
    "query_mask_length": ({"query_mask": mask(B, N - 1)}, [(B, N - 1)]),
    "query_mask_float": ({"query_mask": full(B, N)}, ["float64", "bool"]),
}


@pytest.mark.parametrize("case", SHARED)
@pytest.mark.parametrize("name", ["pure_attention", "linear_attention"])
def test_shared_options(name, case):
    options, says = SHARED[case]
    refused(getattr(infsa, name), X, X, X, says=says, **options)


PURE = {
    "attn_mask_size": ({"attn_mask": mask(N, N + 1)}, [(N, N + 1)]),
    "attn_mask_rank_1": ({"attn_mask": mask(N + 1)}, [(N + 1,)]),
    "attn_mask_rank_5": ({"attn_mask": mask(1, 1, 1, N, N)}, [(1, 1, 1, N, N)]),
    "attn_mask_heads": ({"attn_mask": mask(B, 2, N, N)}, [(B, 2, N, N)]),
    "attn_mask_integers": ({"attn_mask": full(N, N, dtype=torch.int64)}, ["int64"]),
    "attn_mask_list": ({"attn_mask": [[True] * N] * N}, ["list"]),
    "attn_mask_device": ({"attn_mask": mask(N, N).to("meta")}, ["meta"]),
    "hops_0": ({"hops": 0}, [0]),
    "hops_negative": ({"hops": -1}, [-1]),
    "hops_fraction": ({"hops": 2.5}, [2.5]),
    "hops_bool": ({"hops": True}, [True]),
    "hops_nan": ({"hops": math.nan}, ["nan"]),
    "hops_minus_inf": ({"hops": -math.inf}, ["-inf"]),
    "hops_text": ({"hops": "inf"}, ["inf"]),
    "dropout_1": ({"dropout_p": 1.0}, [1.0]),
    "dropout_negative": ({"dropout_p": -0.1}, [-0.1]),
    "dropout_nan": ({"dropout_p": math.nan}, ["nan"]),
    "dropout_with_hops": ({"dropout_p": 0.1, "hops": 2}, ["dropout_p", "hops", 2]),
    "dropout_with_inf": ({"dropout_p": 0.1, "hops": math.inf}, ["dropout_p", "hops", "inf"]),
    "is_causal_text": ({"is_causal": "yes"}, ["yes"]),
    "is_causal_none": ({"is_causal": None}, ["None"]),
}


LINEAR = {
    "causal_true": ({"causal": True}, [True, "chunk"]),
    "causal_full": ({"causal": "full"}, ["full", "chunk"]),
    "causal_full_with_chunk_size": ({"causal": "full", "chunk_size": 2}, ["full", "chunk"]),
    "causal_false": ({"causal": False}, [False]),
    "causal_without_chunk_size": ({"causal": "chunk"}, ["chunk_size"]),
    "chunk_size_without_causal": ({"chunk_size": 4}, [4, "causal"]),
    "chunk_size_0": ({"causal": "chunk", "chunk_size": 0}, [0]),
    "chunk_size_negative": ({"causal": "chunk", "chunk_size": -3}, [-3]),
    "chunk_size_fraction": ({"causal": "chunk", "chunk_size": 2.5}, [2.5]),
    "chunk_size_bool": ({"causal": "chunk", "chunk_size": True}, [True]),
    "iterations_0": ({"iterations": 0}, [0]),
    "iterations_negative": ({"iterations": -2}, [-2]),
    "iterations_fraction": ({"iterations": 1.5}, [1.5]),
    "iterations_bool": ({"iterations": True}, [True]),
    "queries_0": ({"queries": 0}, [0]),
    "queries_negative": ({"queries": -1}, [-1]),
    "queries_too_many": ({"queries": N + 1}, [N + 1, N]),
    "queries_fraction": ({"queries": 2.0}, [2.0]),
    "queries_bool": ({"queries": True}, [True]),
}


OPTIONS = [(infsa.pure_attention, *case) for case in PURE.values()]
OPTIONS += [(infsa.linear_attention, *case) for case in LINEAR.values()]


@pytest.mark.parametrize(("function", "options", "says"), OPTIONS, ids=[*PURE, *LINEAR])
@pytest.mark.parametrize("impl", [*IMPLS, "auto"])
def test_options(impl, function, options, says):
    refused(function, X, X, X, says=says, impl=impl, **options)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (infsa.pure_attention, {"is_causal": True}),
        (infsa.pure_attention, {"hops": 2}),
        (infsa.pure_attention, {"hops": math.inf}),
        (infsa.linear_attention, {"iterations": 2}),
        (infsa.linear_attention, {"causal": "chunk", "chunk_size": 2}),
    ],
)
@pytest.mark.parametrize("impl", [*IMPLS, "auto"])
def test_cross_attention(impl, function, options):
    says = [next(iter(options)), 3, N]
    refused(function, X[:, :, :3], X, X, says=says, impl=impl, **options)


@pytest.mark.parametrize("options", [{"queries": 2}, {"iterations": 2}], ids=str)
@pytest.mark.parametrize("impl", [*IMPLS, "auto"])
def test_extensions_are_not_combined_with_causal(impl, options):
    says = [*options, "causal"]
    causal = {"causal": "chunk", "chunk_size": 2}
    refused(infsa.linear_attention, X, X, X, says=says, impl=impl, **causal, **options)


@pytest.mark.parametrize("option", ["attn_mask", "is_causal", "dropout_p"])
def test_linear_has_no_pairwise_option(option):
    with pytest.raises(TypeError, match=option):
        infsa.linear_attention(X, X, X, **{option: mask(N, N)})


def test_linear_says_what_it_has_instead_of_is_causal():
    with pytest.raises(TypeError, match="no exact causal form, so no is_causal: use causal='chunk' and chunk_size"):
        infsa.linear_attention(X, X, X, is_causal=True)
    assert infsa.linear_attention(X, X, X, is_causal=False).equal(infsa.linear_attention(X, X, X))


def test_weights_refuse_the_same():
    refused(infsa.pure_weights, X, X[..., :3], says=[3, D])
    refused(infsa.pure_weights, X, X, activation="softmax", says=["softmax"])
    refused(infsa.pure_weights, X[:, :, :3], X, is_causal=True, says=["is_causal", 3, N])
    refused(infsa.linear_weights, X, X[..., :3], says=[3, D])
    refused(infsa.linear_weights, X, X, queries=N + 1, says=[N + 1, N])
    refused(infsa.linear_weights, X[:, :, :3], X, iterations=2, says=["iterations", 3, N])


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0, 5.0])
def test_a_gamma_tensor_is_not_read(value):
    """Validating it would synchronise the device: whatever it holds is used."""
    gamma = torch.tensor(value, dtype=torch.float64)
    reference = infsa.pure_attention(X, X, X, gamma=0.5)
    assert torch.allclose(infsa.pure_attention(X, X, X, gamma=gamma), reference * value / 0.5)
    reference = infsa.linear_attention(X, X, X, gamma=0.5)
    assert torch.allclose(infsa.linear_attention(X, X, X, gamma=gamma), reference * value / 0.5)
