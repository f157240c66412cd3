"""A run that others can write to gets no secret of the user who looks at it."""

import json

import pytest

from deploy import cli
from deploy.commands.audit import read_journal
from deploy.launch.monitoring import target_groups
from deploy.runs.configs import light_config, load_config
from deploy.runs.export import export
from deploy.runs.folder import RunFolder
from deploy.runs.live_status import _token
from services.config.file import dump_config
from services.errors import UserError


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    (tmp_path / "secret").write_text("s3cret\n")
    folder = RunFolder(tmp_path / "runs/a")
    folder.path.mkdir(parents=True, mode=0o700)
    dump_config(load_config("alfworld-tiny", [
        "env.urls=[http://127.0.0.1:1]", f"env.token_file={tmp_path / 'secret'}", "redis.url=redis://127.0.0.1:1",
        f"redis.password_file={tmp_path / 'secret'}", f"model.chat_template={tmp_path / 'secret'}",
        "redis.outage_seconds=1"]), folder.config_file)
    (folder.path / "run.json").write_text('{"run": "a-1"}')
    folder.targets.parent.mkdir(parents=True, mode=0o700)
    folder.targets.write_text(json.dumps(target_groups("a", "127.0.0.1:1", ["http://127.0.0.1:1"])))
    folder.targets.chmod(0o600)
    return folder


@pytest.mark.attack
@pytest.mark.parametrize("place", ["path", "config_file", "targets"])
def test_status_sends_no_token_to_addresses_that_others_can_write(folder, capsys, place):
    assert _token(folder.path) == "s3cret"
    getattr(folder, place).chmod(0o777)
    assert _token(folder.path) is None
    cli.main(["status", str(folder.path)])
    assert "env.token_file is not used" in capsys.readouterr().err


@pytest.mark.attack
def test_audit_and_export_use_no_file_that_a_shared_run_names(folder, capsys, tmp_path):
    folder.path.chmod(0o777)
    assert read_journal(folder, light_config(folder.config_file)) is None
    assert "redis.password_file is not used" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"model\.chat_template .* is not copied"):
        export(folder, 1, tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
