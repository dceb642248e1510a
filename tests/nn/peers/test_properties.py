"""What the mathematics of each mechanism implies, and what all of them share."""

import itertools

import pytest
import torch

from .helpers import BASE, BLOCK, LARGER, NAMES, NO_POSITION, build, tokens


@pytest.mark.parametrize("name", NAMES)
def test_permutation_equivariance_exactly_without_position_terms(name):
    module, x = build(name), tokens()
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(0))
    same = torch.allclose(module(x[:, order], BASE), module(x, BASE)[:, order], rtol=1e-9)
    assert same == (name in NO_POSITION)


@pytest.mark.parametrize("name", ["infsa_linear", "mean", "energy"])
def test_pooling_gives_every_token_one_row_and_projects_only_that(name):
    module, x = build(name), tokens()
    out = module(x, BASE)
    assert all(torch.linalg.matrix_rank(item) == 1 for item in out)
    assert torch.equal(out, out[:, :1].expand_as(out))
    rows = []
    for inner in module.modules():
        if type(inner) is torch.nn.Linear:
            inner.register_forward_hook(lambda _, args, out: rows.append(args[0].shape[1]))
    module(x, BASE)
    assert sorted(rows) == ([1] if name == "mean" else [1, x.shape[1]])


def test_linear_infsa_with_queries_has_their_rank():
    module = build("infsa_linear", queries=3)
    assert all(torch.linalg.matrix_rank(item) == 3 for item in module(tokens(), BASE))


@pytest.mark.parametrize("name", [*NAMES, BLOCK])
def test_every_parameter_learns(name):
    module = build(name, dtype=torch.float32, noise=0.0)
    out = module(tokens(LARGER, dtype=torch.float32), LARGER)
    out.square().sum().backward()
    for parameter_name, parameter in module.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name


def test_no_two_mechanisms_are_the_same():
    x = tokens()
    outputs = {name: build(name, noise=0.0)(x, BASE) for name in NAMES}
    for a, b in itertools.combinations(NAMES, 2):
        assert (outputs[a] - outputs[b]).abs().max() > 1e-3, (a, b)


@pytest.mark.parametrize("name", ["infsa_pure", "infsa_linear", "mean", "energy"])
def test_gamma_is_fixed_or_learned(name):
    x = tokens(dtype=torch.float32)
    fixed = build(name, dtype=torch.float32, noise=0.0, gamma=0.4)
    learned = build(name, dtype=torch.float32, noise=0.0, gamma=0.4, learn_gamma=True)
    assert not torch.allclose(fixed(x, BASE), build(name, dtype=torch.float32, noise=0.0)(x, BASE))
    torch.testing.assert_close(learned(x, BASE), fixed(x, BASE))
    learned(x, BASE).square().sum().backward()
    (logit,) = (p for n, p in learned.named_parameters() if n.endswith("decay.logit"))
    assert (logit.grad != 0).all()


@pytest.mark.parametrize("name", [*NAMES, BLOCK])
def test_evaluation_is_deterministic_and_images_are_independent(name):
    module, x = build(name).eval(), tokens()
    out = module(x, BASE)
    assert torch.equal(module(x, BASE), out)
    torch.testing.assert_close(module(x[1:], BASE), out[1:])


@pytest.mark.parametrize("name", [*NAMES, BLOCK])
def test_state_round_trip(name):
    """Everything a result depends on is in the state, the Performer's directions included."""
    options = {"seed": 5} if name == "performer" else {}
    module, other = build(name, **options), build(name, start=9)
    other.load_state_dict(module.state_dict())
    x = tokens()
    assert torch.equal(other(x, BASE), module(x, BASE))


@pytest.mark.parametrize("name", ["flatten", "agent", "linformer"])
def test_constant_tables_are_the_same_at_every_grid(name):
    """A table without structure stays so when resized: a constant image then gives one constant row."""
    module = build(name, num_prefix=0)
    with torch.no_grad():
        if name == "flatten":
            module.position.copy_(module.position[:, :1, :1].expand_as(module.position))
            module.conv.weight.zero_()
        elif name == "agent":
            for bias in (module.bias_k, module.bias_q):
                for table in (bias.table, bias.rows, bias.columns):
                    table.copy_(table[..., :1, :1].expand_as(table))
            module.conv.weight.zero_()
        else:
            for table in (module.compress_k, module.compress_v):
                table.copy_(table[:1].expand_as(table))
    row = tokens(num_prefix=0)[:, :1]
    small = module(row.expand(-1, 15, -1), BASE, 0)
    large = module(row.expand(-1, 24, -1), LARGER, 0)
    torch.testing.assert_close(large, small[:, :1].expand_as(large))


def test_soft_keeps_its_landmarks_at_every_grid():
    module = build("soft", grid=(14, 14), landmarks=7)
    assert module.landmark_conv.kernel_size == (2, 2)
    seen = []
    inverse = module._inverse
    module._inverse = lambda landmarks: seen.append(landmarks.shape[-2]) or inverse(landmarks)
    for grid in [(14, 14), (9, 20), (30, 3)]:
        module(tokens(grid), grid)
    assert seen == [49, 49, 49]


@pytest.mark.parametrize("name", NAMES)
def test_prefix_tokens_may_be_many(name):
    """Registers cost nothing but themselves: 0, 1 and 5 prefix tokens run at any grid."""
    for num_prefix in (0, 1, 5):
        module = build(name, num_prefix=num_prefix)
        for grid in (BASE, LARGER, (1, 1), (2, 9)):
            x = tokens(grid, num_prefix)
            out = module(x, grid, num_prefix)
            assert out.shape == x.shape
            assert out.isfinite().all()


@pytest.mark.parametrize("options", [{"fused": True}, {"fused": False}, {}])
def test_dropout_acts_in_training_only(options):
    name = "softmax" if options else "infsa_pure"
    module, plain, x = build(name, dropout=0.5, **options), build(name), tokens()
    assert not torch.equal(module(x, BASE), module(x, BASE))
    assert torch.allclose(module.eval()(x, BASE), plain(x, BASE))
