"""``infsa demo``: the idea of the paper, measured on a photograph in a few seconds."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..ops.validate import check_gamma
from .parameters import check_seed, checked

if TYPE_CHECKING:
    from ..report.demo import Demo


def demo(
    out: Annotated[Path, typer.Option(help="Folder for figures and numbers.")] = Path("runs/demo"),
    gamma: Annotated[float, typer.Option(help="Decay per hop, between 0 and 1.", callback=checked(check_gamma))] = 0.7,
    seed: Annotated[int, typer.Option(help="Seed of the projections.", callback=checked(check_seed))] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show that Pure InfSA, the Neumann series and the Markov chain agree, and how tokens rank.

    Builds the token graph of a photograph, prints tables, and writes figures and numbers.

    Example: infsa demo --gamma 0.9 --out runs/demo
    """
    from ..report.demo import run_demo, write_summary
    from ..report.demo_figures import draw_demo

    console = Console(quiet=as_json)
    with console.status("Measuring a token graph ..."):
        result = run_demo(gamma=gamma, seed=seed)
        files = [*draw_demo(result, out), write_summary(result, out)]
    if as_json:
        typer.echo(json.dumps({**result.summary(), "files": [str(file) for file in files]}, indent=2))
        return
    for table in (identities_table(result), ranking_table(result), alignment_table(result)):
        console.print(table)
        console.print()
    console.print("Written:")
    for file in files:
        console.print(f"  {file}", highlight=False, soft_wrap=True)


def identities_table(result: "Demo") -> Table:
    """Three routes to the same numbers."""
    table = Table(title="1. One operator, three readings", title_justify="left")
    table.add_column("identity")
    table.add_column("relative difference", justify="right")
    for claim, difference in result.identities.items():
        table.add_row(claim, f"{difference:.1e}")
    table.caption = (
        f"{result.config['tokens']} tokens, gamma = {result.config['gamma']}, float64; head 0: spectral "
        f"radius {result.spectrum['spectral_radius']:.3f}, largest row sum "
        f"{result.spectrum['largest_row_sum']:.2f}"
    )
    table.caption_justify = "left"
    return table


def ranking_table(result: "Demo") -> Table:
    """The most central tokens by every measure."""
    table = Table(title="2. Which tokens matter (head 0)", title_justify="left")
    table.add_column("centrality")
    table.add_column("top five tokens")
    table.add_column("Spearman with Katz (in)", justify="right")
    for name, entry in result.summary()["ranking"].items():
        tokens = ", ".join(str(token) for token in entry["top_tokens"])
        table.add_row(name.replace("_", " "), tokens, f"{entry['spearman_with_katz_in']:.4f}")
    table.caption = "Degree stands beside the multi-hop measures: where they agree, one hop says it all."
    table.caption_justify = "left"
    return table


def alignment_table(result: "Demo") -> Table:
    """Linear-InfSA's vector against the true Perron vector, beside two trivial candidates."""
    table = Table(title="3. Does Linear-InfSA find the Perron vector?", title_justify="left")
    table.add_column("tokens")
    table.add_column("candidate")
    for column in ("cosine, mean", "lowest", "Spearman, mean", "lowest"):
        table.add_column(column, justify="right")
    for tokens, candidates in result.summary()["alignment"].items():
        for index, (name, entry) in enumerate(candidates.items()):
            table.add_row(tokens if index == 0 else "", name, *(f"{value:.3f}" for value in entry.values()))
        table.add_section()
    table.caption = (
        f"Over {result.config['heads']} heads, untrained projections. Energy and uniform are baselines. "
        "Centring the tokens shows how much of the agreement is a direction they share."
    )
    table.caption_justify = "left"
    return table
