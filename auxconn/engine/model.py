"""A tiny mixture-of-experts model, made on the spot.

A real engine needs a model, and a machine in CI has no way to fetch one. Only that it is a
MoE matters here: seeded weights route tokens as well as trained ones do, and since they are
of a sensible size, what a layer chooses depends on what it attends to, so a KV block that
was loaded wrongly shows in tokens and rows. The tokenizer is trained on the manual that
Python itself brings, an English text that is there wherever this runs.

A folder is named after all that goes into it and is moved into place when it is complete,
so two processes may make it at the same time, and a change here makes another one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from auxconn.engine.config import MAX_MODEL_LEN, EngineConfig

SERVED_NAME = "toy-moe"
"""Name under which vLLM serves it."""

VOCABULARY = 1024
"""Tokens; the last kernel of a step walks them all, in Python."""

SPECIAL = ("<|end|>", "<|pad|>", "<|user|>", "<|assistant|>")
FIRST_TOKEN = len(SPECIAL)
"""Token ids below it are special ones, which no prompt of a workload has."""

_HIDDEN, _HEADS, _KV_HEADS, _HEAD, _EXPERT = 128, 4, 2, 32, 64
_FORMAT = 1
"""Raised when what this module writes changes."""

_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)


def cache_folder() -> Path:
    """Where models are kept: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "auxconn" / "models"


def model_folder(config: EngineConfig, cache: Path | None = None) -> Path:
    """Return the folder of the toy model, made if it is not there yet.

    Parameters
    ----------
    cache
        Folder in whose place it is; the user's cache by default.

    Raises
    ------
    OSError
        When the folder cannot be written.
    """
    settings, text = model_settings(config), _training_text()
    recipe = json.dumps(
        [_FORMAT, settings, config.seed, VOCABULARY, metadata.version("tokenizers")]
    )
    digest = hashlib.sha256(recipe.encode() + text.encode()).hexdigest()[:16]
    folder = (cache or cache_folder()) / f"{SERVED_NAME}-{digest}"
    if all((folder / name).is_file() for name in _FILES):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        _write(made, settings, text, config.seed)
        made.chmod(0o755)
        if folder.exists():
            # Incomplete: somebody has cleaned up by halves.
            for name in _FILES:
                (made / name).replace(folder / name)
        else:
            try:
                made.rename(folder)
            except OSError:
                # Another process was sooner, with the same content.
                if not folder.is_dir():
                    raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def model_settings(config: EngineConfig) -> dict[str, Any]:
    """`config.json` of the toy."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": _HIDDEN,
        "intermediate_size": 2 * _HIDDEN,
        "moe_intermediate_size": _EXPERT,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD,
        "num_experts": config.num_experts,
        "num_experts_per_tok": config.top_k,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "vocab_size": VOCABULARY,
        "max_position_embeddings": MAX_MODEL_LEN,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 1,
        "torch_dtype": "float32",
    }


def _training_text() -> str:
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def _write(folder: Path, settings: dict[str, Any], text: str, seed: int) -> None:
    from safetensors.numpy import save_file

    def keep(name: str, value: object) -> None:
        (folder / name).write_text(json.dumps(value, indent=1), encoding="utf-8")

    keep("config.json", settings)
    keep(
        "generation_config.json",
        {"eos_token_id": 0, "pad_token_id": 1, "do_sample": True},
    )
    keep(
        "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": SPECIAL[0],
            "pad_token": SPECIAL[1],
            "model_max_length": MAX_MODEL_LEN,
            "clean_up_tokenization_spaces": False,
            "chat_template": (
                "{% for message in messages %}<|{{ message['role'] }}|>"
                "{{ message['content'] }}{% endfor %}<|assistant|>"
            ),
        },
    )
    _train(text).save(str(folder / "tokenizer.json"))
    save_file(_weights(settings, seed), folder / "model.safetensors", {"format": "pt"})


def _train(text: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        text.splitlines(keepends=True),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return tokenizer


def _weights(settings: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        drawn = rng.standard_normal((rows, columns), dtype=np.float32)
        return np.asarray(drawn * np.float32(scale / columns**0.5), dtype=np.float32)

    def ones(number: int) -> np.ndarray:
        return np.ones(number, dtype=np.float32)

    found = {
        # Of size 1 each, as what the layers add to them.
        "model.embed_tokens.weight": matrix(VOCABULARY, _HIDDEN, _HIDDEN**0.5),
        "model.norm.weight": ones(_HIDDEN),
        # Some words are far likelier than others, as in a model that has learned.
        "lm_head.weight": matrix(VOCABULARY, _HIDDEN, 3.0),
    }
    for layer in range(settings["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        found |= {
            f"{at}.input_layernorm.weight": ones(_HIDDEN),
            f"{at}.post_attention_layernorm.weight": ones(_HIDDEN),
            f"{at}.self_attn.q_proj.weight": matrix(_HEADS * _HEAD, _HIDDEN),
            f"{at}.self_attn.k_proj.weight": matrix(_KV_HEADS * _HEAD, _HIDDEN),
            f"{at}.self_attn.v_proj.weight": matrix(_KV_HEADS * _HEAD, _HIDDEN),
            f"{at}.self_attn.o_proj.weight": matrix(_HIDDEN, _HEADS * _HEAD, 2.0),
            f"{at}.self_attn.q_norm.weight": ones(_HEAD),
            f"{at}.self_attn.k_norm.weight": ones(_HEAD),
            f"{at}.mlp.gate.weight": matrix(settings["num_experts"], _HIDDEN),
        }
        for expert in range(settings["num_experts"]):
            found |= {
                f"{at}.mlp.experts.{expert}.gate_proj.weight": matrix(_EXPERT, _HIDDEN),
                f"{at}.mlp.experts.{expert}.up_proj.weight": matrix(_EXPERT, _HIDDEN),
                f"{at}.mlp.experts.{expert}.down_proj.weight": matrix(_HIDDEN, _EXPERT),
            }
    return found
