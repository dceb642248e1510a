"""Scratch: one call that checks and times the eager and causal paths of Pure InfSA on a GPU."""

import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

sys.path[:0] = [os.path.dirname(__file__), os.getcwd()]
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import infsa
from infsa.ops.pure import triton_backward as B
from infsa.ops.pure import triton_forward as W
from infsa.ops.triton import configs
from infsa.ops.triton.configs import Config as C

DEV = "cuda" if torch.cuda.is_available() else "cpu"
BEGIN = time.perf_counter()
REPORT = {}


def say(*x):
    print(f"[{time.perf_counter() - BEGIN:5.1f}]", *x, flush=True)


def keep():
    out = os.environ.get("OUT")
    if out:
        with open(os.path.join(out, "pure.json"), "w") as f:
            json.dump(REPORT, f, indent=1)


def tokens(heads, width, n, seed=0, dtype=torch.bfloat16):
    g = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(1, n, heads, width, generator=g, device="cuda").to(dtype).transpose(1, 2) for _ in range(3)]


T = {"tma": True}
KEYS = {
    (64, True): [
        C(128, 64, 4, 2),
        C(128, 64, 4, 2, narrow=2),
        C(128, 64, 4, 2, narrow=8),
        C(128, 64, 4, 2, **T),
        C(128, 64, 4, 3),
        C(64, 64, 4, 3, registers=168),
    ],
    (64, False): [
        C(64, 64, 4, 3, registers=168),
        C(128, 64, 4, 2),
        C(128, 64, 4, 2, **T),
        C(64, 64, 4, 2, registers=168),
    ],
    (128, True): [
        C(64, 64, 4, 2, **T),
        C(64, 64, 4, 2, narrow=1, **T),
        C(64, 64, 4, 2, narrow=2, **T),
        C(64, 64, 4, 3, narrow=2, **T),
        C(32, 64, 4, 3, narrow=1, **T),
        C(64, 128, 8, 4, narrow=1, **T),
    ],
    (128, False): [C(64, 128, 8, 4), C(64, 64, 4, 2, **T), C(64, 128, 8, 3, **T), C(64, 128, 8, 4, **T)],
    (80, False): [
        C(64, 64, 4, 2, **T),
        C(64, 64, 4, 3, registers=168),
        C(64, 64, 4, 3),
        C(64, 128, 8, 3, **T),
        C(128, 64, 4, 2),
    ],
    (96, False): [C(64, 64, 4, 2, **T), C(64, 64, 4, 3), C(64, 128, 8, 3, **T), C(128, 64, 4, 2)],
}
QUERIES = {
    (64, True): [
        C(128, 64, 8, 3, **T),
        C(128, 64, 8, 3, narrow=2, **T),
        C(64, 64, 4, 3, **T),
        C(64, 64, 4, 4, narrow=2, **T),
        C(128, 64, 8, 4, **T),
    ],
    (64, False): [C(128, 64, 8, 3), C(128, 64, 8, 3, **T), C(64, 64, 4, 3, **T)],
    (128, True): [
        C(128, 64, 8, 4, **T),
        C(128, 64, 8, 4, narrow=2, **T),
        C(128, 64, 8, 4, narrow=1, **T),
        C(128, 64, 8, 5, narrow=1, **T),
    ],
    (128, False): [C(128, 64, 8, 3, **T), C(128, 64, 8, 4, **T), C(128, 64, 8, 5, **T)],
    (80, False): [
        C(128, 64, 8, 3, **T),
        C(128, 64, 8, 3, registers=128, **T),
        C(64, 64, 4, 3, registers=128, **T),
        C(128, 64, 8, 4, **T),
    ],
    (96, False): [C(128, 64, 8, 3, **T), C(64, 64, 4, 3, **T), C(128, 64, 8, 4, **T)],
}
FORWARD = {
    (64, True): [C(128, 64, 4, 3, lanes=True), C(128, 64, 4, 3, lanes=True, **T), C(128, 128, 8, 3, lanes=True)],
    (128, True): [
        C(128, 128, 8, 3, lanes=True, **T),
        C(128, 64, 4, 3, lanes=True, **T),
        C(128, 64, 8, 3, lanes=True, **T),
    ],
    (80, False): [
        C(128, 64, 8, 3, lanes=True, **T),
        C(128, 64, 4, 3, lanes=True, **T),
        C(128, 128, 8, 3, lanes=True, **T),
        C(64, 64, 4, 3, lanes=True, **T),
        C(128, 64, 4, 3, lanes=True),
    ],
    (96, False): [
        C(128, 64, 8, 3, lanes=True, **T),
        C(128, 64, 4, 3, lanes=True, **T),
        C(128, 128, 8, 3, lanes=True, **T),
    ],
}
HEADS = {64: 16, 128: 8, 80: 12, 96: 12}
TOKENS = {64: 16384, 128: 16384, 80: 8192, 96: 8192}


def plain(q, k, v, gamma=0.7, is_causal=False, norm="frobenius", activation="relu"):
    """The equations typed into PyTorch, in the type of the input."""
    phi = {"relu": torch.relu, "gelu": F.gelu}[activation]
    r = phi(q @ k.mT / q.shape[-1] ** 0.5)
    r = r.tril() if is_causal else r
    wide = torch.promote_types(q.dtype, torch.float32)
    squares = torch.linalg.vector_norm(r, dim=-1).to(wide).square()
    if norm == "row":
        n = torch.arange(1, r.shape[-1] + 1, dtype=wide) if is_causal else torch.tensor(r.shape[-1], dtype=wide)
        total = (squares * n)[..., None]
    else:
        total = squares.cumsum(-1)[..., None] if is_causal else squares.sum(-1)[..., None, None]
    alive = total > 0
    size = torch.where(alive, total, 1).sqrt() * alive
    return gamma.view(-1, 1, 1) * ((r / (size.to(r.dtype) + 1e-6)) @ v)


def passes(kernel, width, n, config, causal=True):
    """One kernel of the causal pass as a call."""
    q, k, v = tokens(HEADS[width], width, n)
    if kernel == "forward":
        return lambda: W.forward(q, k, v, 0.7, "relu", causal, 1e-6, config)
    z, norm = W.forward(q, k, v, 0.7, "relu", causal, 1e-6)
    grad = torch.randn_like(z)
    plan = W.plan_for(q, k, v, 0.7, None, "relu", causal, 1e-6)
    outs = tuple(torch.empty_like(x) for x in (q, k, v))
    chosen = (config, None) if kernel == "keys" else (None, config)
    wanted = (kernel == "queries", kernel == "keys")
    return lambda: B.pass_back(plan, grad, q, k, v, 0.7, z, norm, None, outs, wanted, chosen)


def compile_one(job):
    kernel, width, config, causal = job
    try:
        passes(kernel, width, 512, config, causal)()
        torch.cuda.synchronize()
        return None
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]


def rms(x):
    return x.double().square().mean().sqrt().item()


def check_one(job):
    """Errors of values and gradients against float64, as multiples of plain PyTorch's; bit-equality."""
    dtype, n, n_k, width, options, packed = job
    try:
        g = torch.Generator().manual_seed(n + width)
        x = torch.randn(2, max(n, n_k), 3, 2, width, generator=g).to(dtype).to(DEV)
        w = torch.randn(2, 2, n, width, generator=g).to(torch.bfloat16).to(torch.float16)

        def results(function, x, gamma):
            x, gamma = x.detach().requires_grad_(), gamma.detach().requires_grad_()
            q, k, v = x.permute(2, 0, 3, 1, 4).unbind()
            out = function(q[:, :, :n], k[:, :, :n_k], v[:, :, :n_k], gamma) if not packed else function(x, gamma)
            return [out.detach(), *torch.autograd.grad(out, (x, gamma), w.to(out))]

        gamma = torch.tensor([0.4, 0.8], device=DEV)
        if packed:

            def ours(x, gamma):
                from infsa.ops.pure import packed_attention

                return packed_attention(x, gamma=gamma, impl="triton", **options)

            def theirs(x, gamma):
                return plain(*x.permute(2, 0, 3, 1, 4).unbind(), gamma=gamma, **options)
        else:

            def ours(q, k, v, gamma):
                return infsa.pure_attention(q, k, v, gamma=gamma, impl="triton", **options)

            def theirs(q, k, v, gamma):
                return plain(q, k, v, gamma=gamma, **options)

        a, b = results(ours, x, gamma), results(ours, x, gamma)
        exact = results(theirs, x.double().cpu(), gamma.double().cpu())
        yard = results(theirs, x.cpu(), gamma.to(dtype).cpu())
        parts = lambda r: [y.cpu() for y in (r[0], *r[1].unbind(2))]
        ratios = [
            round(rms(p.double() - e) / max(rms(y.double() - e), 1e-30), 2)
            for p, y, e in zip(parts(a), parts(yard), parts(exact))
        ]
        dgamma = (a[2].cpu() - exact[2]).abs().max().item() / exact[2].abs().max().item()
        return {"z dq dk dv": ratios, "dgamma": round(dgamma, 6), "equal": all(torch.equal(p, q) for p, q in zip(a, b))}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"[:300]}


def graph(call):
    call()
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        call()
    return g.replay


def ms(call, rep=25):
    from triton.testing import do_bench

    return do_bench(graph(call), warmup=8, rep=rep, return_mode="median")


def softmax(causal):
    def attend(q, k, v):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return attend


def both(function, inputs):
    inputs = [x.detach().requires_grad_() for x in inputs]
    w = torch.randn_like(function(*inputs))
    return lambda: torch.autograd.grad(function(*inputs), inputs, w)


def guarded(name, function):
    try:
        REPORT[name] = function()
    except Exception as error:
        REPORT[name] = f"{type(error).__name__}: {error}"[:300]
    say(name, json.dumps(REPORT[name]))
    keep()


def main():
    bf, hf, ff = torch.bfloat16, torch.float16, torch.float32
    cases = {f"full {t} 257 d64": (t, 257, 257, 64, {}, False) for t in (bf, hf, ff)}
    cases |= {f"causal {t} 1001 d64": (t, 1001, 1001, 64, {"is_causal": True}, False) for t in (bf, hf, ff)}
    cases |= {f"row {t} 333x777 d64": (t, 333, 777, 64, {"norm": "row"}, False) for t in (bf, hf, ff)}
    cases |= {f"causal {d} bf16 1024": (bf, 1024, 1024, d, {"is_causal": True}, False) for d in (80, 96, 128, 20)}
    cases |= {f"full d80 {t} 257": (t, 257, 257, 80, {}, False) for t in (bf, hf, ff)}
    cases |= {
        "packed bf16": (bf, 513, 513, 64, {}, True),
        "packed causal bf16": (bf, 513, 513, 128, {"is_causal": True}, True),
    }
    cases |= {
        "packed gelu causal row fp16": (
            hf,
            300,
            300,
            64,
            {"is_causal": True, "norm": "row", "activation": "gelu"},
            True,
        )
    }
    tables = {"keys": KEYS, "queries": QUERIES, "forward": FORWARD}
    jobs = [
        (kernel, width, c, causal)
        for kernel, table in tables.items()
        for (width, causal), cs in table.items()
        for c in cs
    ]
    with ProcessPoolExecutor(14, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = pool.map(check_one, cases.values())
        failed = pool.map(compile_one, jobs)
        for name, result in zip(cases, found):
            REPORT[name] = result
            say(name, json.dumps(result))
        failures = dict(zip(jobs, failed))
    keep()
    best = {}
    for (kernel, width, config, causal), why in failures.items():
        try:
            t = None if why else ms(passes(kernel, width, TOKENS[width], config, causal))
        except Exception as error:
            why, t = f"{type(error).__name__}: {error}"[:200], None
        name = f"{kernel} d{width} {'causal' if causal else 'full'} {config}"
        REPORT[name] = why or t
        say(name.replace("specialize=False, ", ""), why or f"{t:.3f}")
        if t is not None and t < best.get((kernel, width, causal), (1e9, None))[0]:
            best[kernel, width, causal] = (t, config)
        if time.perf_counter() - BEGIN > 40:
            break
    keep()
    for (kernel, width, causal), (_, config) in best.items():
        (configs.CAUSAL.setdefault((kernel, 90), {}) if causal else configs.HALF[kernel, 90])[width] = config
    W.forward_plan.cache_clear(), B._backward_plan.cache_clear()
    from infsa.ops.pure import triton_function

    triton_function._checked.cache_clear()
    say("best", {str(k): str(v) for k, v in best.items()})

    def against(width, causal):
        """Ours and cuDNN's in turns; medians of three."""
        inputs = tokens(HEADS[width], width, TOKENS[width])
        ours = lambda q, k, v: infsa.pure_attention(q, k, v, is_causal=causal)
        calls = {
            f"{name} {p}": graph(both(f, inputs) if p == "both" else torch.no_grad()(lambda f=f: f(*inputs)))
            for p in ("forward", "both")
            for name, f in (("ours", ours), ("cudnn", softmax(causal)))
        }
        from triton.testing import do_bench

        times = {
            name: sorted(do_bench(call, warmup=5, rep=20, return_mode="median") for _ in range(3))
            for name, call in calls.items()
        }
        row = {name: [round(t, 3) for t in ts] for name, ts in times.items()}
        return row | {
            f"{p} ours/cudnn": round(times[f"ours {p}"][1] / times[f"cudnn {p}"][1], 3) for p in ("forward", "both")
        }

    for width, causal in ((64, True), (128, True), (64, False), (128, False), (80, False), (96, False), (80, True)):
        guarded(f"d{width} {'causal' if causal else 'full'}", lambda: against(width, causal))

    def host_us(call):
        for _ in range(10):
            call()
        rounds = []
        for _ in range(4):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(200):
                call()
            rounds.append((time.perf_counter() - begin) / 200)
        torch.cuda.synchronize()
        return round(1e6 * min(rounds), 1)

    def eager_row(function, **options):
        q, k, v = (torch.randn(1, 16, 1024, 64, device="cuda", dtype=bf, requires_grad=True) for _ in range(3))
        w = torch.randn_like(q)

        def step():
            q.grad = k.grad = v.grad = None
            function(q, k, v, **options).backward(w)

        return {"forward us": host_us(torch.no_grad()(lambda: function(q, k, v, **options))), "both us": host_us(step)}

    sdpa = F.scaled_dot_product_attention
    for turn in (1, 2, 3):
        guarded(f"eager sdpa {turn}", lambda: eager_row(sdpa))
        guarded(f"eager pure {turn}", lambda: eager_row(infsa.pure_attention))
    guarded("eager pure causal", lambda: eager_row(infsa.pure_attention, is_causal=True))

    say("done")


if __name__ == "__main__":
    main()
