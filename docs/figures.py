"""Redraw the figures of the documentation: python docs/figures.py"""

from pathlib import Path

from infsa.report import figures

IMAGES = Path(__file__).parent / "images"


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    figures.draw_five_tokens(IMAGES / "five-tokens.png")


if __name__ == "__main__":
    main()
