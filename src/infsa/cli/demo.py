"""``infsa demo``: the idea of the paper and the shipped models, measured in about a minute."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from .options import Gamma, Json, print_json, progress_report, seed_of


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report, figures and numbers.")] = Path("runs/demo"),
    gamma: Gamma = 0.7,
    seed: Annotated[int, seed_of("projections and random orders")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Two photographs and short timings: a few seconds.")] = False,
    as_json: Json = False,
) -> None:
    """Explain photographs with the shipped models, check the theory, time nine mechanisms, and write one report.

    No network is needed. The report is a single HTML file; its numbers and figures are also saved beside it.

    Example: infsa demo --gamma 0.9 --out runs/demo
    """
    from ..files import make_folder, write_json
    from ..report.demo import look_at, one_thread, run_demo, time_mechanisms
    from ..report.demo_page import demo_sections, draw_demo, write_report
    from ..report.photographs import example_images

    make_folder(out)
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
        sections = demo_sections(result, models, timing, figures)
        page = write_report(out, sections)
    numbers = {**result.summary(), "models": models.summary(), "timing": timing}
    files = [page, *figures, write_json(numbers, out / "demo.json")]
    print_json({**numbers, "files": files}, as_json)
    for section in sections:
        console.print(Text(section.title, style="bold"), Text(section.found), sep="\n")
        console.print(*section.tables)
        console.print()
    console.print("Figures and numbers beside the report:", highlight=False)
    for file in files[1:]:
        console.print(f"  {file}", highlight=False, soft_wrap=True)
    console.print(f"\nOpen the report: [bold]{page}[/bold]", highlight=False, soft_wrap=True)
