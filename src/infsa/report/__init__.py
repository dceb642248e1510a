"""Figures and reports drawn from the library's own results."""
