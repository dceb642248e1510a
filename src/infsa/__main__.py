"""``python -m infsa``: the command line."""

from .cli import main

main()
