"""Accuracy, and the quality of attention maps: removal curves, boxes, alignment with the Perron vector."""

from ..graph.statistics import cosine, ranks, spearman
from .accuracy import Accuracy, evaluate_model, measure_accuracy
from .alignment import Alignment, align, align_heads, captured, power_iteration
from .fills import FILLS, impute, replacement
from .localization import (
    average_precision,
    best_box_iou,
    centre_map,
    chance_precision,
    patch_labels,
    pointing,
    precision_recall_curve,
    roc_auc,
    roc_curve,
)
from .maps import Explanation, View, class_names, data_config, explain, input_size, likeliest, maps_of, model_input
from .measure import chosen_images, configuration, measure
from .perturbation import area_under, level_counts, removal_curves, removal_ranks
from .results import Results, fingerprint
from .settings import Aligning, Boxes, Removal
from .study import study_alignment, study_quality
from .subjects import Subject, load_model
from .summary import over_runs, summarise_alignment, summarise_boxes, summarise_removal

__all__ = [
    "FILLS",
    "Accuracy",
    "Aligning",
    "Alignment",
    "Boxes",
    "Explanation",
    "Removal",
    "Results",
    "Subject",
    "View",
    "align",
    "align_heads",
    "area_under",
    "average_precision",
    "best_box_iou",
    "captured",
    "centre_map",
    "chance_precision",
    "chosen_images",
    "class_names",
    "configuration",
    "cosine",
    "data_config",
    "evaluate_model",
    "explain",
    "fingerprint",
    "impute",
    "input_size",
    "level_counts",
    "likeliest",
    "load_model",
    "maps_of",
    "measure",
    "measure_accuracy",
    "model_input",
    "over_runs",
    "patch_labels",
    "pointing",
    "power_iteration",
    "precision_recall_curve",
    "ranks",
    "removal_curves",
    "removal_ranks",
    "replacement",
    "roc_auc",
    "roc_curve",
    "spearman",
    "study_alignment",
    "study_quality",
    "summarise_alignment",
    "summarise_boxes",
    "summarise_removal",
]
