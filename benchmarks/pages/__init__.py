"""Tables and figures that only the documents show, drawn from result files."""
