"""The operators over ranks against those of one process."""

import torch

import infsa
from infsa import parallel
from tests.parallel.checks import assert_near, check, compare_operator, heads, own_share


@check(2, 4)
def linear_operator():
    """Every option, masks included; one vector for all, so each rank takes its share of the loss."""
    q, k, v = heads()
    own = own_share(23)
    mask = torch.rand(2, 23) > 0.3
    for options in ({}, {"activation": "gelu"}, {"activation": "abs", "iterations": 3}, {"key_mask": mask}):
        local = {name: value[:, own] if name == "key_mask" else value for name, value in options.items()}
        compare_operator(
            lambda *x, o=options: infsa.linear_attention(*x, **o),
            lambda *x, o=local: parallel.linear_attention(*x, group=None, **o),
            (q, k, v),
            torch.randn(2, 2, 1, 4, dtype=torch.float64),
            own,
            whole_output=True,
        )


@check(2, 4)
def linear_operator_of_several_queries():
    """Blocks are counted over the real tokens of all ranks."""
    q, k, v = heads()
    own = own_share(23)
    mask = torch.rand(2, 23) > 0.3
    for key_mask in (None, mask):
        compare_operator(
            lambda *x, m=key_mask: infsa.linear_attention(*x, queries=5, key_mask=m),
            lambda *x, m=key_mask: parallel.linear_attention(
                *x, group=None, queries=5, key_mask=None if m is None else m[:, own]
            ),
            (q, k, v),
            torch.randn(2, 2, 23, 4, dtype=torch.float64),
            own,
        )


@check(2, 4)
def pure_operator():
    """The ring gives rows and gradients of one process: masks, several hops, causal prefix norm, learned decay."""
    own = own_share(23)
    mask = torch.rand(2, 23) > 0.3
    choices = [{}, {"activation": "gelu"}, {"activation": "abs", "hops": 3}, {"key_mask": mask}, {"is_causal": True}]
    choices += [{"is_causal": True, "key_mask": mask, "hops": 2}]
    for options in choices:
        local = {name: value[:, own] if name == "key_mask" else value for name, value in options.items()}
        compare_operator(
            lambda *x, o=options: infsa.pure_attention(*x, **o),
            lambda *x, o=local: parallel.pure_attention(*x, group=None, **o),
            heads(),
            torch.randn(2, 2, 23, 4, dtype=torch.float64),
            own,
        )


@check(2, 4)
def pure_operator_across():
    """Queries and keys are split differently; values are wider."""
    q, (k, v) = heads(tokens=17, parts=1)[0], heads(parts=2)
    v = torch.cat([v, v.cos()], -1)
    rows, columns = own_share(17), own_share(23)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = infsa.pure_attention(*leaves)
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    parts = [x[:, :, own].clone().requires_grad_() for x, own in ((q, rows), (k, columns), (v, columns))]
    result = parallel.pure_attention(*parts, group=None, query_mask=torch.ones(2, parts[0].shape[2], dtype=torch.bool))
    (result * weights[:, :, rows]).sum().backward()
    assert_near(result.detach(), expected.detach()[:, :, rows])
    for part, leaf, own in zip(parts, leaves, (rows, columns, columns), strict=True):
        assert_near(part.grad, leaf.grad[:, :, own])


@check(2, 4)
def dead_graph():
    """All scores negative: zeros and finite gradients, as in one process."""
    q = torch.rand(1, 1, 8, 4, dtype=torch.float64, requires_grad=True)
    z = parallel.pure_attention(q, -q, q, group=None)
    z.sum().backward()
    assert not z.any()
    assert not q.grad.any()


@check(2, 4)
def views_without_gradients():
    """Transposed memory, as projections give it, under no_grad; more than one batch item and head."""
    tokens = torch.randn(2, 23, 3, 2, 4, dtype=torch.float64)
    whole, own = tokens.permute(2, 0, 3, 1, 4).unbind(), own_share(23)
    parts = [x[:, :, own] for x in whole]
    with torch.no_grad():
        pure, linear = parallel.pure_attention(*parts, group=None), parallel.linear_attention(*parts, group=None)
    assert_near(pure, infsa.pure_attention(*whole)[:, :, own])
    assert_near(linear, infsa.linear_attention(*whole))


@check(2)
def half_precision():
    """At most twice the error of one process in the same type, against float64."""
    q, k, v = heads(tokens=40)
    own = own_share(40)
    for whole, sharded in (
        (infsa.pure_attention, parallel.pure_attention),
        (infsa.linear_attention, parallel.linear_attention),
    ):
        halves = [x.bfloat16() for x in (q, k, v)]
        exact = whole(*(x.double() for x in halves))
        alone = (whole(*halves) - exact).abs().max()
        result = sharded(*(x[:, :, own] for x in halves), group=None)
        assert result.dtype == torch.bfloat16
        expected = exact if whole is infsa.linear_attention else exact[:, :, own]
        assert (result - expected).abs().max() <= 2 * alone


@check(2)
def autocast_is_off_inside():
    q, k, v = (x.float() for x in heads())
    own = own_share(23)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = parallel.pure_attention(*(x[:, :, own] for x in (q, k, v)), group=None)
    exact = infsa.pure_attention(*(x.double() for x in (q, k, v)))[:, :, own]
    assert_near(result.double(), exact, 1e-5)
