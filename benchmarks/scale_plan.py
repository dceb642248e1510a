"""How long a 100,000 × 100,000 image and 1,000 images per hour take, simulated from measurements.

    python benchmarks/scale_plan.py                    reads results/, writes results/scale-plan.json and docs/scale.md
    python benchmarks/scale_plan.py --hourly 5000 --out /tmp/plan.json --document ""          another load, a trial

Measured: seconds and bytes per megapixel of streaming (results/streaming*.json), bytes per layer between ranks
(results/communication.json). Assumed, and written into the result: the network, how much steps of equal work differ
between devices, and the load. An image is split evenly over a team of devices that wait for each other after every pass
over the tokens; images of the load arrive at random and wait for the first free team.
"""

import argparse
import heapq
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pages.marks import write_tables

import infsa
from infsa.files import read_json, write_json
from infsa.provenance import provenance

ROOT = Path(__file__).parents[1]
SHOWN = "bfloat16"  # rows of the document


@dataclass(frozen=True)
class Rate:
    """One measured way to run a model on one device."""

    device: str
    model: str
    strategy: str
    dtype: str
    seconds_per_megapixel: float
    bytes_per_megapixel: float | None  # tokens kept between passes, or all in memory; None if not measured


@dataclass(frozen=True)
class Network:
    """An assumption: rings of point-to-point links."""

    latency: float  # seconds per message
    bandwidth: float  # bytes per second and link

    def all_reduce(self, payload: float, team: int) -> float:
        """Seconds of a ring all-reduce."""
        return 2 * (team - 1) * (self.latency + payload / team / self.bandwidth)


def main() -> None:
    options = arguments()
    results = Path(options.results)
    network = Network(options.latency, options.bandwidth)
    rates = read_rates(results)
    payloads = {rate.model: layer_payload(rate.model, results / "communication.json") for rate in rates}
    rng = np.random.default_rng(options.seed)
    large, load = [], []
    for rate in rates:
        for team in options.teams:
            image = one_image(rate, options.side, team, network, payloads[rate.model], options.jitter, rng)
            large.append({**asdict(rate), "side": options.side, "team": team, **image})
        for team in options.teams[:-1]:
            usual = one_image(rate, options.load_side, team, network, payloads[rate.model], options.jitter, rng)
            fewest = serve(usual["seconds"], team, options.hourly, options.hours, options.seed)
            load.append({**asdict(rate), "side": options.load_side, "hourly": options.hourly, "team": team, **fewest})
    assumed = {name: getattr(options, name) for name in ("latency", "bandwidth", "jitter", "hours", "seed")}
    plan = {"assumed": assumed, "large": large, "load": load, "made_with": provenance()}
    print(table(plan))
    write_json(plan, options.out)
    if options.document:
        write_tables(Path(options.document), {"plan": table(plan)})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=100_000, help="pixels along the side of the large image")
    parser.add_argument("--load-side", type=int, default=18_000, help="the same for the images of the load")
    parser.add_argument("--hourly", type=int, default=1000, help="images per hour")
    parser.add_argument("--hours", type=int, default=24, help="length of the simulated load")
    parser.add_argument("--teams", type=int, nargs="+", default=[1, 8, 64], help="devices that share an image")
    parser.add_argument("--latency", type=float, default=20e-6, help="seconds per message between devices")
    parser.add_argument("--bandwidth", type=float, default=25e9, help="bytes per second of a link")
    parser.add_argument("--jitter", type=float, default=0.05, help="relative spread of equal steps on equal devices")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", default=ROOT / "benchmarks" / "results", help="where the measurements are")
    parser.add_argument("--out", default=ROOT / "benchmarks" / "results" / "scale-plan.json")
    parser.add_argument("--document", default=ROOT / "docs" / "scale.md")
    return parser.parse_args()


# Measurements


def read_rates(results: Path) -> list[Rate]:
    """Every strategy that benchmarks/streaming.py has measured."""
    rates = []
    for path in sorted(results.glob("streaming*.json")):
        content = read_json(path)
        for section in ("strategies", "gpu"):
            if section not in content:
                continue
            measured = content[section]
            made = measured["provenance"]
            device = made.get("gpu", f"{made['cpu']}, {made['threads']} threads")
            rates += [rate_of(row, device, measured) for row in measured["rows"]]
    if not rates:
        raise SystemExit(f"no measurement in {results}/streaming*.json: run benchmarks/streaming.py strategies or gpu")
    return rates


def rate_of(row: dict[str, Any], device: str, measured: dict[str, Any]) -> Rate:
    model, kept = measured["model"], row.get("where", "nowhere")
    strategy = row.get("strategy", row.get("run")) + (f" to {kept}" if kept != "nowhere" else "")
    dtype = row.get("dtype", "torch.float32").removeprefix("torch.")
    held = row.get("token_bytes_per_megapixel")
    if held is None and strategy == "in memory":
        held = row["device_peak"] and row["device_peak"] / (measured["side"] ** 2 / 1e6)
    elif held is None:
        held = token_bytes(model, dtype) if strategy.startswith("spill") else 0.0
    return Rate(device, model, strategy, dtype, row["seconds_per_megapixel"], held)


def shape_of(model: str) -> Any:
    with torch.device("meta"):
        return infsa.create_model(model)


def token_bytes(model: str, dtype: str) -> float:
    """Bytes of a megapixel's tokens: arithmetic, for rows that do not carry it."""
    shape = shape_of(model)
    rows, columns = shape.patch_embed.patch_size
    return 1e6 / (rows * columns) * shape.embed_dim * torch.empty(0, dtype=getattr(torch, dtype)).element_size()


def layer_payload(model: str, path: Path) -> tuple[int, float]:
    """Layers, and the measured bytes of a layer's all-reduces, which no number of tokens or ranks may change."""
    shape = shape_of(model)
    wanted = (shape.attention, shape.embed_dim, shape.num_heads)
    rows = [row for row in read_json(path)["rows"] if (row["attention"], row["dim"], row["heads"]) == wanted]
    sizes = {row["forward_all_reduce_bytes"] for row in rows}
    if len(sizes) != 1:
        raise SystemExit(f"{path} must hold one size for {wanted}, got {sorted(sizes)}")
    return len(shape.blocks), sizes.pop()


# Simulation


def one_image(
    rate: Rate,
    side: int,
    team: int,
    network: Network,
    payload: tuple[int, float],
    jitter: float,
    rng: np.random.Generator,
    runs: int = 200,
) -> dict[str, float]:
    """Seconds for one image: after each of two passes per layer the team waits for its slowest and adds its sums."""
    layers, size = payload
    patch = shape_of(rate.model).patch_embed.patch_size[0]
    rows = np.array([len(part) for part in np.array_split(np.arange(-(-side // patch)), team)])
    megapixels = rows * patch * side / 1e6  # of each device
    phases = 2 * layers + 1
    work = megapixels * rate.seconds_per_megapixel / phases
    steps = work * np.exp(rng.normal(0, jitter, (runs, phases, team)))
    compute = statistics.median(steps.max(-1).sum(-1).tolist())
    talk = 2 * layers * network.all_reduce(size / 2, team)
    held = None if rate.bytes_per_megapixel is None else float(rate.bytes_per_megapixel * megapixels.max())
    return {
        "seconds": compute + talk,
        "seconds_talking": talk,
        "seconds_waiting": statistics.median((steps.max(-1) - steps.mean(-1)).sum(-1).tolist()),
        "bytes_kept_per_device": held,
        "bytes_sent_per_device": 2 * (team - 1) / team * layers * size,
    }


def serve(seconds: float, team: int, hourly: int, hours: int, seed: int) -> dict[str, float]:
    """The fewest teams that keep up (95 % of the images done within three times their own work), and what they do."""
    teams = max(1, int(hourly * seconds / 3600))
    while True:
        busy, delays = simulate_load(seconds, teams, hourly, hours, seed)
        if statistics.quantiles(delays, n=20)[-1] <= 3 * seconds:
            break
        teams += 1
    return {
        "seconds_per_image": seconds,
        "devices": teams * team,
        "busy": busy,
        "median_delay": statistics.median(delays),
        "delay_of_95_percent": statistics.quantiles(delays, n=20)[-1],
    }


def simulate_load(seconds: float, teams: int, hourly: int, hours: int, seed: int) -> tuple[float, list[float]]:
    """First come, first served: the share of time that teams work, and from arrival to answer, per image."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(3600 / hourly, hourly * hours))
    free = [0.0] * teams
    delays = []
    for arrival in arrivals.tolist():
        end = max(arrival, heapq.heappop(free)) + seconds
        heapq.heappush(free, end)
        delays.append(end - arrival)
    return len(delays) * seconds / (teams * max(free)), delays


# The document


def table(plan: dict[str, Any]) -> str:
    """The large image on the GPU in bfloat16; other devices and dtypes, and the load, are in the result file."""
    large, assumed = [row for row in plan["large"] if row["dtype"] == SHOWN] or plan["large"], plan["assumed"]
    teams = sorted({row["team"] for row in large})
    lines = [f"| strategy | {' | '.join(f'{n} GPU' if n == 1 else f'{n} GPUs' for n in teams)} | GB kept per GPU |"]
    lines += ["| --- " * (2 + len(teams)) + "|"]
    for strategy in dict.fromkeys(row["strategy"] for row in large):
        rows = {row["team"]: row for row in large if row["strategy"] == strategy}
        held = [rows[team]["bytes_kept_per_device"] for team in teams]
        cells = [strategy, *(duration(rows[team]["seconds"]) for team in teams)]
        cells.append(" / ".join("?" if size is None else f"{size / 1e9:.0f}" for size in held))
        lines.append(f"| {' | '.join(cells)} |")
    most = [row for row in large if row["team"] == teams[-1]]
    spent = [max(row[f"seconds_{what}"] / row["seconds"] for row in most) for what in ("talking", "waiting")]
    lines += [
        "",
        f"With {teams[-1]} GPUs, communication takes at most {spent[0]:.0%} of the time, waiting for the slowest ",
    ]
    lines[-1] += f"GPU {spent[1]:.0%}. Assumed: links of {assumed['bandwidth'] / 1e9:g} GB/s and "
    lines[-1] += f"{assumed['latency'] * 1e6:g} µs, steps that vary by {assumed['jitter']:.0%}."
    return "\n".join(lines) + "\n"


def duration(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60), ("s", 1), ("ms", 1e-3)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs" if seconds > 0 else "0"


if __name__ == "__main__":
    main()
