"""Embeddings and predictions of many images as one table, on one machine or a Ray cluster."""

from .run import Progress, Summary, embed
from .settings import Settings

__all__ = ["Progress", "Settings", "Summary", "embed"]
