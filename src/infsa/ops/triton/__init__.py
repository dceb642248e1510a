"""GPU kernels of Pure and Linear InfSA, written in Triton and registered as ``torch.library`` operators.

Importing this package does not import Triton; its modules do.
"""
