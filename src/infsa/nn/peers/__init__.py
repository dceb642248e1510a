"""The attention mechanisms that InfSA is compared with, and InfSA itself, behind one interface."""

from .agent import AgentAttention
from .base import Attention
from .controls import EnergyPool, Fastformer, MeanPool
from .flatten import FLatten
from .infsa import LinearInfSAAttention, PureInfSAAttention
from .linformer import Linformer
from .mlla import MLLABlock, MLLACore
from .performer import Performer
from .registry import ATTENTIONS, attention_options, create_attention
from .soft import SOFT
from .softmax import SoftmaxAttention

__all__ = [
    "ATTENTIONS",
    "SOFT",
    "AgentAttention",
    "Attention",
    "EnergyPool",
    "FLatten",
    "Fastformer",
    "LinearInfSAAttention",
    "Linformer",
    "MLLABlock",
    "MLLACore",
    "MeanPool",
    "Performer",
    "PureInfSAAttention",
    "SoftmaxAttention",
    "attention_options",
    "create_attention",
]
