"""A teacher that cannot score the policy's tokens is refused before anything starts."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import Qwen2Config, Qwen2ForCausalLM

from deploy.launch.checks.model_folder import check_teacher
from deploy.runs.configs import load_config
from learner.cold_start.scratch_model import train_tokenizer
from services.errors import UserError

TOKENS = ("learner.loss.ratio=token",)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provides a tiny model with a tokenizer."""
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = train_tokenizer(["take cup 1 from desk 2</action>"])
    tokenizer.save_pretrained(folder)
    Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=8, num_hidden_layers=1,
                                 num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=1024)
                     ).save_pretrained(folder)
    return folder


@pytest.fixture
def teacher(model: Path, tmp_path: Path) -> Path:
    """Provides a copy of the model."""
    return Path(shutil.copytree(model, tmp_path / "teacher"))


def mistakes(model: Path | None, teacher: Path, *overrides: str) -> list[str]:
    config = load_config("alfworld-tiny", (f"model.path={model or 'null'}", f"learner.distill.teacher={teacher}",
                                           *(overrides or TOKENS)))
    return [str(mistake) for mistake in check_teacher(config)]


def test_a_teacher_with_the_policys_tokenizer_passes(model: Path, teacher: Path):
    assert mistakes(model, teacher) == []


def test_a_teacher_with_another_tokenizer_is_refused_by_name(model: Path, teacher: Path):
    train_tokenizer(["put lamp 7 on sofa 3</action>"]).save_pretrained(teacher)
    (found,) = mistakes(model, teacher)
    assert found.startswith(f"learner.distill.teacher={teacher} has another tokenizer than model.path={model}: the tok")
    assert found.endswith("; choose a teacher of the same family")


def test_a_single_token_in_another_place_is_named(model: Path, teacher: Path):
    file = teacher / "tokenizer.json"
    text = json.loads(file.read_text())
    moved = {"a": text["model"]["vocab"]["b"], "b": text["model"]["vocab"]["a"]}
    text["model"]["vocab"] |= moved
    file.write_text(json.dumps(text))
    (found,) = mistakes(model, teacher)
    assert f": the token 'b' is number {moved['b']} there and number {moved['a']} here;" in found


def fewer_scores(folder: Path) -> None:
    """Takes the last token from the weights and config.json, but not from the tokenizer."""
    config = Qwen2Config.from_pretrained(folder)
    config.vocab_size -= 1
    Qwen2ForCausalLM(config).save_pretrained(folder)


def short(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": 100}))


@pytest.mark.parametrize(("change", "expected"), [
    (lambda folder: (folder / "model.safetensors").unlink(), "has no weights; name a complete Hugging Face folder"),
    (shutil.rmtree, "there is no model at learner.distill.teacher="),
    (fewer_scores, " tokens, and model.path="),
    (short, "prompt and response may take 504 tokens, and learner.distill.teacher="),
])
def test_a_folder_that_cannot_teach_is_refused(model: Path, teacher: Path, change: Callable[[Path], object],
                                               expected: str):
    change(teacher)
    (found,) = mistakes(model, teacher)
    assert expected in found


def test_one_ratio_per_action_and_a_model_from_scratch_are_refused(model: Path, teacher: Path):
    (found,) = mistakes(model, teacher, "learner.loss.ratio=sequence")
    assert found.endswith("has one ratio per action; set learner.loss.ratio=token")
    (found,) = mistakes(None, teacher)
    assert "the cold start of a model made from scratch makes a new one" in found


def test_preflight_asks_about_the_teacher(model: Path, tmp_path: Path, two_cpus: None, monkeypatch: pytest.MonkeyPatch):
    from deploy.launch.checks import preflight

    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    config = load_config("alfworld-tiny", (
        "eval.episodes=8", "eval.panel=8", f"model.path={model}", *TOKENS,
        f"learner.distill.teacher={tmp_path / 'absent'}"))
    with pytest.raises(UserError, match=r"there is no model at learner\.distill\.teacher="):
        preflight.check(config)
