"""A model in name alone: enough of one for vLLM to make a configuration of it."""

from __future__ import annotations

from typing import Any

from auxconn.lab.config import LabConfig
from auxconn.lab.workloads import VOCABULARY

ARCHITECTURE = "AuxconnLabMoeForCausalLM"
"""Model class registered with vLLM under this name.

A name of vLLM's own would make it import that model in a subprocess to look at it, which
takes ten seconds on a fresh machine.
"""


def register_model() -> None:
    """Tell vLLM's registry of a text model that exists in name alone."""
    from vllm.model_executor.models import ModelRegistry

    if ARCHITECTURE in ModelRegistry.models:
        return
    import torch

    class AuxconnLabMoeForCausalLM(torch.nn.Module):
        """What vLLM looks at to call a class a text-generating model; never made."""

        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            raise NotImplementedError("the lab has no model")

        def embed_input_ids(self, input_ids: Any) -> Any:
            raise NotImplementedError

        def forward(self, input_ids: Any, positions: Any) -> Any:
            raise NotImplementedError

        def compute_logits(self, hidden_states: Any) -> Any:
            raise NotImplementedError

    ModelRegistry.register_model(ARCHITECTURE, AuxconnLabMoeForCausalLM)


def model_settings(config: LabConfig) -> dict[str, Any]:
    """`config.json` of a toy with the configured layers and experts."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3_moe",
        "hidden_size": 64,
        "intermediate_size": 64,
        "moe_intermediate_size": 32,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "num_experts": config.num_experts,
        "num_experts_per_tok": config.top_k,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": config.max_request_tokens,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
