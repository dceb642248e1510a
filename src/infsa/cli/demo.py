"""``infsa demo``: the idea of the paper and the shipped models, measured in about a minute."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..report.table import Table
from .options import progress_report
from .parameters import check_gamma, check_seed, checked

if TYPE_CHECKING:
    from ..report.demo import Demo
    from ..report.demo_models import Models


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report, figures and numbers.")] = Path("runs/demo"),
    gamma: Annotated[float, typer.Option(help="Decay per hop, between 0 and 1.", callback=checked(check_gamma))] = 0.7,
    seed: Annotated[int, typer.Option(help="Seed of projections and random orders.", callback=checked(check_seed))] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Two photographs and short timings: a few seconds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Explain photographs with the shipped models, check the theory, time nine mechanisms, write one report.

    Needs no network. The report is a single HTML file with its figures inside; numbers and figures lie beside it.

    Example: infsa demo --gamma 0.9 --out runs/demo
    """
    from ..files import write_json
    from ..report.demo import run_demo
    from ..report.demo_figures import draw_demo
    from ..report.demo_images import example_images
    from ..report.demo_models import look_at
    from ..report.demo_report import write_report
    from ..report.demo_timing import one_thread, time_mechanisms

    out.mkdir(parents=True, exist_ok=True)
    console = Console(quiet=as_json)
    with one_thread(), progress_report(console) as report:
        report("Token graph", 0, 1)
        result = run_demo(gamma=gamma, seed=seed)
        figures = draw_demo(result, out)
        report("Token graph", 1, 1)
        report("Models and maps", 0, 1)
        images = example_images()
        models = look_at(dict(list(images.items())[:2]) if quick else images, seed)
        report("Models and maps", 1, 1)
        timing = time_mechanisms((256, 512), 0.01, report) if quick else time_mechanisms(report=report)
        page = write_report(out, result, models, timing, figures)
    numbers = {**result.summary(), "models": models.summary(), "timing": timing}
    files = [page, *figures, write_json(numbers, out / "demo.json")]
    if as_json:
        typer.echo(json.dumps({**numbers, "files": [str(file) for file in files]}, indent=2))
        return
    tables = (maps_table(models), identities_table(result), ranking_table(result), alignment_table(result))
    for table in (*tables, timing_table(timing)):
        console.print(table)
        console.print()
    console.print("Figures and numbers lie beside the report:", highlight=False)
    for file in files[1:]:
        console.print(f"  {file}", highlight=False, soft_wrap=True)
    console.print(f"\nOpen the report: [bold]{page}[/bold]", highlight=False, soft_wrap=True)


def maps_table(models: "Models") -> Table:
    """What the models take the photographs for, and what their maps are worth."""

    names = list(models.areas)
    rows = [
        [
            image,
            *(f"{found[name].predictions[0][0].split(',')[0]} {found[name].predictions[0][1]:.0%}" for name in names),
        ]
        for image, found in models.explanations.items()
    ]
    rows.append(["area over the MoRF curve, %", *(f"{100 * models.areas[name]['map']:.1f}" for name in names)])
    rows.append(["  in random order", *(f"{100 * models.areas[name]['random order']:.1f}" for name in names)])
    caption = f"Shipped weights, 50 classes, 64 pixels; curves over {models.views} views."
    return Table(["photograph", *names], rows, "0. Photographs through the shipped models", caption)


def timing_table(timing: dict[str, Any]) -> Table:
    """Milliseconds over growing N."""
    from ..report.bench_tables import number

    rows = [[name, *(number(time) for time in times)] for name, times in timing["milliseconds"].items()]
    columns = ["one layer, ms", *(f"N = {tokens:,}" for tokens in timing["tokens"])]
    return Table(columns, rows, "4. Nine mechanisms over growing N, this CPU", "A sketch; see infsa bench.")


def identities_table(result: "Demo") -> Table:
    """Three routes to the same numbers."""

    rows = [[claim, f"{difference:.1e}"] for claim, difference in result.identities.items()]
    caption = (
        f"{result.config['tokens']} tokens, gamma = {result.config['gamma']}, float64; head 0: spectral "
        f"radius {result.spectrum['spectral_radius']:.3f}, largest row sum "
        f"{result.spectrum['largest_row_sum']:.2f}"
    )
    return Table(["identity", "relative difference"], rows, "1. One operator, three readings", caption)


def ranking_table(result: "Demo") -> Table:
    """The most central tokens by every measure."""

    rows = [
        [
            name.replace("_", " "),
            ", ".join(str(token) for token in entry["top_tokens"]),
            f"{entry['spearman_with_katz_in']:.4f}",
        ]
        for name, entry in result.summary()["ranking"].items()
    ]
    columns = ["centrality", "top five tokens", "Spearman with Katz (in)"]
    caption = "Degree stands beside the multi-hop measures: where they agree, one hop says it all."
    return Table(columns, rows, "2. Which tokens matter (head 0)", caption)


def alignment_table(result: "Demo") -> Table:
    """Linear-InfSA's vector against the true Perron vector, beside two trivial candidates."""

    rows = [
        [tokens if index == 0 else "", name, *(f"{value:.3f}" for value in entry.values())]
        for tokens, candidates in result.summary()["alignment"].items()
        for index, (name, entry) in enumerate(candidates.items())
    ]
    columns = ["tokens", "candidate", "cosine, mean", "lowest", "Spearman, mean", "lowest"]
    caption = (
        f"Over {result.config['heads']} heads, untrained projections. Energy and uniform are baselines. "
        "Centring the tokens shows how much of the agreement is a direction they share."
    )
    return Table(columns, rows, "3. Does Linear-InfSA find the Perron vector?", caption)
