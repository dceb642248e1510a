"""The tables of docs/scale.md, from the result files; each script makes its own."""

from pathlib import Path

from infsa.files import read_json

RESULTS = Path(__file__).parents[1] / "results"


def streaming_table() -> str:
    """One image on one device, by every strategy."""
    import streaming

    found = [read_json(RESULTS / f"{name}.json") for name in ("streaming", "streaming-gpu")]
    return streaming.streaming_table({name: section for content in found for name, section in content.items()})


def cohort_table() -> str:
    """``infsa embed`` against a loop."""
    import cohort

    return cohort.table(read_json(RESULTS / "cohort.json"))


def slides_table() -> str:
    """A cohort of slides, by arithmetic."""
    import cohort

    return cohort.slides()


def communication_table() -> str:
    """Bytes between ranks."""
    import communication

    return communication.table(read_json(RESULTS / "communication.json"))


def plan_table() -> str:
    """Larger work, simulated."""
    import scale_plan

    return scale_plan.table(read_json(RESULTS / "scale-plan.json"))


TABLES = {
    "streaming": streaming_table,
    "cohort": cohort_table,
    "slides": slides_table,
    "communication": communication_table,
    "plan": plan_table,
}
