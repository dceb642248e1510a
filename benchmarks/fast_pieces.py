"""Pieces of the fast model, measured one by one."""

import cProfile
import pstats
import sys
import time
import traceback

START = time.perf_counter()
import torch
from torch.profiler import ProfilerActivity, profile

import infsa
from infsa.models import embedding, fast


def ms(f, n=10):
    f()
    f()
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
    marks[0].record()
    for m in marks[1:]:
        f()
        m.record()
    torch.cuda.synchronize()
    return sorted(a.elapsed_time(b) for a, b in zip(marks, marks[1:]))[n // 2]


def host(f):
    f()
    t = []
    for _ in range(5):
        torch.cuda.synchronize()
        b = time.perf_counter()
        f()
        t.append(time.perf_counter() - b)
    torch.cuda.synchronize()
    return 1e3 * sorted(t)[2]


def guarded(f, *a, **k):
    try:
        f(*a, **k)
    except Exception:
        traceback.print_exc(limit=-4)


@torch.no_grad()
def main():
    torch.manual_seed(0)
    m = infsa.create_model("infvit_linear_4l64h_patch16_224", num_classes=1000).to("cuda", torch.bfloat16).eval()
    pics = lambda n, w=None, b=1: torch.randn(b, 3, n, w or n, device="cuda").bfloat16()

    def first():
        q, x = fast(m), pics(1024)
        torch.cuda.synchronize()
        b = time.perf_counter()
        q(x)
        torch.cuda.synchronize()
        print("first ever", time.perf_counter() - b, q.graph_memory())
        for s in ((224, 224, 64), (640, 480, 3), (1504, 2000, 1), (2000, 3008, 2), (4000, 4000, 1), (4000, 6000, 1)):
            x = pics(*s)
            torch.cuda.synchronize()
            b = time.perf_counter()
            q(x)
            torch.cuda.synchronize()
            one = time.perf_counter() - b
            b = time.perf_counter()
            y = q(x)
            torch.cuda.synchronize()
            two = time.perf_counter() - b
            e = m(x)
            print(
                s,
                f"first {one:.4f} second {1e3 * two:.3f} ms steady {ms(lambda: q(x), 8):.3f} host {host(lambda: q(x)):.3f} distance {((y - e).norm() / e.norm()).item():.4f}",
                q.graph_memory(),
                flush=True,
            )

    guarded(first)

    def captured():
        q, x1, x2 = fast(m), pics(1024), pics(1024)
        q(x1)
        e = q(x2)
        g = torch.cuda.CUDAGraph()
        static = x1.clone()
        with torch.cuda.graph(g):
            out = q(static)
        static.copy_(x2)
        g.replay()
        torch.cuda.synchronize()
        print("captured by the caller", (out - e).abs().max().item())
        from concurrent.futures import ThreadPoolExecutor

        e1, e2 = q(x1), q(x2)

        def one(i):
            with torch.inference_mode():
                return (q(x1 if i % 2 else x2) - (e1 if i % 2 else e2)).abs().max().item()

        with ThreadPoolExecutor(4) as pool:
            print("threads", max(pool.map(one, range(40))), flush=True)

    guarded(captured)

    def profiled(n, **kw):
        q, x = fast(m, **kw), pics(n)
        q(x)
        q(x)
        torch.cuda.synchronize()
        print(n, kw, f"ms {ms(lambda: q(x), 6):.3f} host {host(lambda: q(x)):.3f}")
        with profile(activities=[ProfilerActivity.CUDA]) as p:
            q(x)
            torch.cuda.synchronize()
        rows = sorted(((e.key, e.count, e.device_time_total) for e in p.key_averages()), key=lambda r: -r[2])[:13]
        print("sum us", sum(r[2] for r in rows))
        for key, count, us in rows:
            print(f"    {us:9.1f} us {count:4d}x {key[:70]}", flush=True)

    guarded(profiled, 9216)
    guarded(profiled, 9216, fp8=True)
    guarded(profiled, 1024)

    def hosts(**kw):
        q, x = fast(m, graphs=False, **kw), pics(4096)
        q(x)
        torch.cuda.synchronize()
        p = cProfile.Profile()
        p.enable()
        q(x)
        p.disable()
        torch.cuda.synchronize()
        pstats.Stats(p, stream=sys.stdout).sort_stats("tottime").print_stats(9)

    guarded(hosts, fp8=True)
    x = pics(9216)
    print("embed ms", ms(lambda: embedding.embed(m, x)), "seconds", time.perf_counter() - START, flush=True)


main()
