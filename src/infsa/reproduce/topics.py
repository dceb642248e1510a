"""What the paper's claims are about: the counts of the ledger are given by topic."""

PARAMETERS, FLOPS, SPEED, LARGEST, ACCURACY, MAPS, THEORY = TOPICS = (
    "parameters",
    "FLOPs",
    "speed and energy",
    "largest images",
    "accuracy",
    "attention maps",
    "theory",
)
