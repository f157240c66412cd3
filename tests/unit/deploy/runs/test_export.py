"""An exported folder works without the run that it comes from."""

from pathlib import Path

from transformers import AutoTokenizer

from deploy.runs.configs import load_config
from deploy.runs.export import export
from deploy.runs.folder import RunFolder
from deploy.runs.policies import EXPORTED_CONFIG
from learner.cold_start.tokenizer import train_tokenizer
from services.config.file import dump_config

TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}[agent]"


def test_a_template_of_the_config_goes_with_the_model(tmp_path: Path):
    model, run, out = tmp_path / "model", tmp_path / "run", tmp_path / "out"
    tokenizer = train_tokenizer(["you are in a room", "you see a desk"])
    tokenizer.chat_template = None
    tokenizer.save_pretrained(model)
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    config = load_config("alfworld-tiny", ("env.prompt=full", f"model.chat_template={template}"))
    dump_config(config, run / "config.yaml")

    export(RunFolder(run), 3, model, out)

    template.unlink()
    assert AutoTokenizer.from_pretrained(out).chat_template == TEMPLATE
    assert load_config(out / EXPORTED_CONFIG).model.chat_template is None
