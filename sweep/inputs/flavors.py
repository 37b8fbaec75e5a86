"""Models that torchtitan calls by name and flavor, as presets."""

from typing import Final

PRESETS: Final = {
    ("llama3", "8B"): "llama3.1-8b", ("llama3", "70B"): "llama3.1-70b", ("llama3", "405B"): "llama3.1-405b",
    ("llama2", "7B"): "llama2-7b", ("llama2", "13B"): "llama2-13b", ("llama2", "70B"): "llama2-70b",
    ("deepseek_v3", "671B"): "deepseek-v3", ("qwen3", "0.6B"): "qwen3-0.6b", ("qwen3", "8B"): "qwen3-8b",
    ("qwen3", "32B"): "qwen3-32b", ("qwen3", "30B-A3B"): "qwen3-30b-a3b", ("qwen3", "235B-A22B"): "qwen3-235b-a22b",
    ("gpt_oss", "20B"): "gpt-oss-20b", ("gpt_oss", "120B"): "gpt-oss-120b",
}  # fmt: skip
"""Name and flavor -> preset (torchtitan v0.2.2, torchtitan/models/*/__init__.py: the same sizes)."""
