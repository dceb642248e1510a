"""Bytes that a rank sends per layer when the tokens of an image are spread over ranks, forward and backward.

    python benchmarks/communication.py      measure, write results/communication.json and the table in docs/scale.md
    python benchmarks/communication.py --ranks 2 --tokens 256 512 --out /tmp/communication.json --document ""

Processes on this machine, gloo. What is counted is what a layer hands to torch.distributed
(``infsa.parallel.Traffic``); it depends neither on the backend nor on the machine. A ring all-reduce sends
2 (P − 1) / P times its payload, a ring step exactly it.
"""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from pages.marks import write_tables
from torch import multiprocessing, nn

import infsa
from infsa.files import read_json, write_json
from infsa.provenance import provenance

ROOT = Path(__file__).parents[1]
NAMES = {"infsa_linear": "Linear", "infsa_pure": "Pure"}
LAYERS = [  # attention, width, heads: those of the presets
    ("infsa_linear", 1024, 64),
    ("infsa_linear", 192, 12),
    ("infsa_pure", 1024, 16),
    ("infsa_pure", 192, 3),
]


def main() -> None:
    options = arguments()
    rows = []
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(measure, args=(ranks, options.tokens, folder), nprocs=ranks)
            rows += read_json(Path(folder) / "rows.json")
    result = {
        "what": "payload bytes and calls per layer, image and rank, float32; tokens are split evenly",
        "config": {"ranks": options.ranks, "tokens": options.tokens, "batch": 1, "dtype": "float32"},
        "made_with": provenance(),
        "rows": rows,
    }
    print(table(result))
    write_json(result, options.out)
    if options.document:
        write_tables(Path(options.document), {"communication": table(result)})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--out", default=ROOT / "benchmarks" / "results" / "communication.json")
    parser.add_argument("--document", default=ROOT / "docs" / "scale.md")
    return parser.parse_args()


def measure(rank: int, ranks: int, sizes: list[int], folder: str) -> None:
    """One process of the group; the first one writes the rows."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    rows = [measure_layer(*layer, tokens) for layer in LAYERS for tokens in sizes]
    if rank == 0:
        write_json(rows, Path(folder) / "rows.json")
    dist.barrier()
    dist.destroy_process_group()


def measure_layer(attention: str, dim: int, heads: int, tokens: int) -> dict[str, int | str]:
    ranks = dist.get_world_size()
    kind = {"infsa_linear": infsa.nn.LinearInfSA, "infsa_pure": infsa.nn.PureInfSA}[attention]
    layer: nn.Module = infsa.parallel.shard_layers(kind(dim, heads), None)
    x = torch.randn(1, tokens // ranks, dim, requires_grad=True)
    with infsa.parallel.Traffic() as forward:
        z = layer(x)
    with infsa.parallel.Traffic() as backward:
        z.sum().backward()
    row: dict[str, int | str] = {"attention": attention, "dim": dim, "heads": heads, "ranks": ranks, "tokens": tokens}
    for name, traffic in (("forward", forward), ("backward", backward)):
        for operation, short in (("allreduce_", "all_reduce"), ("send", "send")):
            row[f"{name}_{short}_calls"] = traffic.calls[operation]
            row[f"{name}_{short}_bytes"] = traffic.bytes[operation]
    return row


def wire_bytes(row: dict, direction: str) -> float:
    """What a rank puts on the wire if all-reduces run as rings."""
    share = 2 * (row["ranks"] - 1) / row["ranks"]
    return share * row[f"{direction}_all_reduce_bytes"] + row[f"{direction}_send_bytes"]


def table(result: dict) -> str:
    """Kilobytes on the wire per layer, image and rank, by the number of tokens: the widest layers on the most ranks."""
    sizes, ranks = (
        sorted({*result["config"]["tokens"][:1], *result["config"]["tokens"][-1:]}),
        max(result["config"]["ranks"]),
    )
    width = max(row["dim"] for row in result["rows"])
    lines = [f"| layer | direction | {' | '.join(f'{n} tokens' for n in sizes)} |", "| --- " * (2 + len(sizes)) + "|"]
    for attention, dim, heads in LAYERS:
        layer = {"attention": attention, "dim": dim, "heads": heads, "ranks": ranks}
        rows = {row["tokens"]: row for row in result["rows"] if layer.items() <= row.items()}
        for direction in ("forward", "backward") if dim == width else ():
            cells = [f"{wire_bytes(rows[n], direction) / 1e3:,.0f}" for n in sizes]
            lines.append(f"| {NAMES[attention]}, {heads} heads | {direction} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"kB sent per layer, image and rank; {ranks} ranks, width {width}, float32."]) + "\n"


if __name__ == "__main__":
    main()
