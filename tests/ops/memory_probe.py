"""Run in a process of its own: the peak of resident memory of one attention call, printed in MB.

python memory_probe.py IMPL N CAUSAL
"""

import re
import sys
from pathlib import Path

import torch

import infsa


def resident(field):
    """A field of /proc/self/status in MB: VmRSS (now) or VmHWM (the peak)."""
    return int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


def attend(n, impl, causal):
    """One forward and backward pass; its inputs, output and gradients stay alive in the result."""
    q, k, v = (torch.randn(1, 1, n, 64).requires_grad_() for _ in range(3))
    weight = torch.randn(1, 1, n, 64)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    out = infsa.pure_attention(q, k, v, is_causal=causal, impl=impl)
    forward = resident("VmHWM") - before
    out.backward(weight)
    assert all(x.grad.isfinite().all() for x in (q, k, v))
    results = sum(x.numel() * x.element_size() for x in (out, q.grad, k.grad, v.grad)) / 2**20
    return forward, resident("VmHWM") - before - results


def main():
    impl, n, causal = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "causal"
    torch.manual_seed(0)
    for _ in range(3):
        attend(512, impl, causal)  # libraries load, allocators and thread pools settle
    print(*attend(n, impl, causal))


if __name__ == "__main__":
    main()
